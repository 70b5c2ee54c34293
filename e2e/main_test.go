package e2e

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// soak says that the whole numbers are wanted, instead of samples.
var soak = os.Getenv("BUTLER_SOAK") == "1"

// sample gives how many of something a test tries.
func sample(small, whole int) int {
	if soak {
		return whole
	}
	return small
}

var built string // folder of what was built for this run; made on first use

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

var buildButler = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("E2E_BIN"); dir != "" {
		dir, err := filepath.Abs(dir)
		return filepath.Join(dir, "butler"), err
	}
	dir, err := os.MkdirTemp("", "butler-e2e-")
	if err != nil {
		return "", err
	}
	built = dir
	path := filepath.Join(dir, "butler")
	cmd := exec.Command("go", "build", "-o", path, "./services/butler")
	cmd.Dir = ".."
	// As `make build` does it, whatever the tests are built with.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./services/butler: %w\n%s", err, out)
	}
	return path, nil
})

// butler gives the path of the program under test.
func butler(t testing.TB) string {
	t.Helper()
	path, err := buildButler()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildNATS = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("../tools/tool.sh", "nats-server")
	var says strings.Builder
	cmd.Stderr = &says
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tools/tool.sh nats-server: %w\n%s", err, says.String())
	}
	return strings.TrimSpace(string(out)), nil
})

// natsServer gives the path of the NATS server that tools/go.mod pins.
func natsServer(t testing.TB) string {
	t.Helper()
	path, err := buildNATS()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// random gives the test's source of chance, and prints its seed.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("E2E_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("E2E_SEED: %v", err)
		}
		seed = n
	}
	t.Logf("E2E_SEED=%d", seed)
	name := fnv.New64a()
	_, _ = name.Write([]byte(t.Name()))
	return rand.New(rand.NewPCG(seed, name.Sum64()))
}

// slack is by how much this machine is too busy for time limits: 1 when it is not.
func slack() float64 {
	if os.Getenv("E2E_STRICT") == "1" {
		return 1
	}
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 3 // unknown
	}
	one, _, _ := strings.Cut(string(data), " ")
	load, err := strconv.ParseFloat(one, 64)
	if err != nil {
		return 3
	}
	return min(20, max(1, 1.5*load/float64(runtime.NumCPU())))
}

// within reports a time and fails the test when it is above its limit, which counts for a machine that is not busy with
// other things.
func within(t testing.TB, what string, took, limit time.Duration) {
	t.Helper()
	s := slack()
	t.Logf("%s: %v (limit %v, machine %.1f times too busy)", what, took.Round(time.Millisecond), limit, s)
	if took > time.Duration(float64(limit)*s) {
		t.Errorf("%s took %v; the limit is %v", what, took, limit)
	}
}

// eventually waits until ok gives true. What it waits for happens in another process, so it looks again and again.
func eventually(t testing.TB, timeout time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Duration(float64(timeout) * slack()))
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not after %v: %s", timeout, what)
		}
		time.Sleep(10 * time.Millisecond) // between two looks at another process
	}
}
