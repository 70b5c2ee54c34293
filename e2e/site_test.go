package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/storage/storagetest"
)

const (
	adminName     = "admin"
	adminPassword = "correct-horse-battery"
	butlerID      = 2
)

// site is a running Butler, seen by its people.
type site struct {
	t     testing.TB
	model *script
	urls  []string // of the gateways
	admin *person
	n     atomic.Int64 // people made
}

// environment is what every process of a test gets beside its own settings.
func environment(t testing.TB, model *script, dir string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + os.TempDir(),
		"BUTLER_DATA_DIR=" + dir, "BUTLER_LOG_FORMAT=text", "LOG_LEVEL=info",
		"INITIAL_ADMIN_USER=" + adminName, "INITIAL_ADMIN_PASS=" + adminPassword,
		// The least that is allowed: tests sign in hundreds of people.
		"BUTLER_PASSWORD_MEMORY_KIB=8192", "BUTLER_PASSWORD_TIME=1",
	}
	if model != nil {
		env = append(env, "BUTLER_BASE_URL="+model.URL(), "BUTLER_MODEL=test-model", "BUTLER_API_TOKEN=none-needed")
	}
	return env
}

// upSite is `butler up`: everything in one process.
type upSite struct {
	*site
	*process
	dir      string
	natsAddr string
}

// newUp makes a `butler up` in a folder of its own and does not start it.
func newUp(t testing.TB, model *script, settings ...string) *upSite {
	t.Helper()
	return newUpIn(t, t.TempDir(), model, settings...)
}

func newUpIn(t testing.TB, dir string, model *script, settings ...string) *upSite {
	t.Helper()
	u := &upSite{process: newProcess(t, "up", butler(t), "up"), dir: dir, natsAddr: freeAddr(t)}
	httpAddr := freeAddr(t)
	u.ops = freeAddr(t)
	u.env = append(environment(t, model, dir),
		"BUTLER_HTTP_ADDR="+httpAddr, "BUTLER_OPS_ADDR="+u.ops, "BUTLER_NATS_ADDR="+u.natsAddr)
	u.env = append(u.env, settings...)
	u.site = &site{t: t, model: model, urls: []string{"http://" + httpAddr}}
	return u
}

// startUp runs a `butler up` and waits until it is ready.
func startUp(t testing.TB, model *script, settings ...string) *upSite {
	t.Helper()
	u := newUp(t, model, settings...)
	u.run()
	u.signIn()
	return u
}

// operator connects to the embedded NATS server as its operator.
func (u *upSite) operator() *operator {
	u.site.t.Helper()
	password, _, err := bus.OperatorPassword(u.dir)
	if err != nil {
		u.site.t.Fatal(err)
	}
	return connectOperator(u.site.t, u.natsAddr, nats.UserInfo("operator", password))
}

// operator is a connection to NATS that may do everything, for tests that look into the log or write past the services.
type operator struct {
	js jetstream.JetStream
	nc *nats.Conn
}

func connectOperator(t testing.TB, addr string, who nats.Option) *operator {
	t.Helper()
	o := &operator{}
	var err error
	o.nc, err = nats.Connect("nats://"+addr, who, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.nc.Close)
	if o.js, err = jetstream.New(o.nc); err != nil {
		t.Fatal(err)
	}
	return o
}

// consumers counts the consumers of a stream.
func (o *operator) consumers(t testing.TB, stream string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := o.js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Consumers
}

// cluster is the distributed form: each service a process, one NATS server, one PostgreSQL.
type cluster struct {
	*site
	dir        string
	token      string
	nats       *process
	postgres   *storagetest.Cluster
	gateways   []*process
	brains     []*process
	registries []*process
	approvals  []*process
	shells     []*process

	settings    []string // of every service
	databaseURL string
	brainAddrs  []string
	registry    string // address of the registry's gRPC, and so on
	approval    string
	peopleAddrs []string
	shell       string
	shellDir    string // of the shell-runner, with a short path
}

// newCluster makes two gateways, two brains, a registry and a NATS server, with rights as `butler nats-config` gives
// them. Nothing runs but PostgreSQL.
func newCluster(t testing.TB, model *script, postgres *storagetest.Cluster, settings ...string) *cluster {
	t.Helper()
	c := &cluster{
		site: &site{t: t, model: model}, dir: t.TempDir(), postgres: postgres, settings: settings,
		token: strings.Repeat("internal-token.", 4), databaseURL: socketURL(postgres.NewDatabase(t)),
		registry: freeAddr(t), approval: freeAddr(t), shell: freeAddr(t),
		peopleAddrs: []string{freeAddr(t), freeAddr(t)},
	}
	c.nats = newProcess(t, "nats", natsServer(t), "-c", filepath.Join(c.dir, "nats", "nats-server.conf"))
	c.nats.addr = freeAddr(t)
	c.nats.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir}
	writeNATSConfig(t, filepath.Join(c.dir, "nats"), c.nats.addr)
	c.registries = []*process{c.service("registry", "registry", "BUTLER_REGISTRY_ADDR="+c.registry)}
	for range 2 {
		c.addBrain()
	}
	for range 2 {
		c.addGateway()
	}
	c.approvals = []*process{c.service("approval", "approval", "BUTLER_APPROVAL_ADDR="+c.approval)}
	c.shellDir = shortDir(t)
	c.shells = []*process{c.service("shell-runner", "shell-runner", "BUTLER_SHELL_ADDR="+c.shell, "BUTLER_DATA_DIR="+c.shellDir)}
	return c
}

// shortDir is a folder in which shells can be kept: their sockets have short paths. The shells in it end with the test.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() { endShells(t, filepath.Join(dir, "shells")) })
	return dir
}

// addBrain makes one more replica of butler-brain.
func (c *cluster) addBrain() *process {
	addr := freeAddr(c.t)
	p := c.service("brain", fmt.Sprintf("brain-%d", len(c.brains)+1), "BUTLER_BRAIN_ADDR="+addr)
	c.brainAddrs = append(c.brainAddrs, addr)
	c.brains = append(c.brains, p)
	return p
}

// addGateway makes one more replica of the gateway.
func (c *cluster) addGateway() *process {
	addr := freeAddr(c.t)
	n := len(c.gateways)
	p := c.service("gateway", fmt.Sprintf("gateway-%d", n+1),
		"BUTLER_HTTP_ADDR="+addr, "BUTLER_PEOPLE_ADDR="+c.peopleAddrs[n%len(c.peopleAddrs)], "BUTLER_BRAIN_TARGET="+c.brainAddrs[n%len(c.brainAddrs)])
	c.gateways = append(c.gateways, p)
	c.urls = append(c.urls, "http://"+addr)
	return p
}

func (c *cluster) service(service, name string, settings ...string) *process {
	p := newProcess(c.t, name, butler(c.t), service)
	p.ops = freeAddr(c.t)
	dir := filepath.Join(c.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	p.env = append(environment(c.t, c.model, dir),
		"BUTLER_NATS_URL=nats://"+c.nats.addr, "BUTLER_NATS_CREDENTIALS="+natsCredentials(c.dir, strings.TrimSuffix(service, "-runner")),
		"BUTLER_DATABASE_URL="+c.databaseURL, "INTERNAL_SERVICE_TOKEN="+c.token,
		"BUTLER_REGISTRY_TARGET="+c.registry, "BUTLER_OPS_ADDR="+p.ops, "BUTLER_APPROVAL_TARGET="+c.approval,
		"BUTLER_PEOPLE_TARGET="+c.peopleAddrs[0], "BUTLER_SHELL_HOST=host", "BUTLER_SHELL_TARGETS=host="+c.shell)
	p.env = append(p.env, settings...)
	p.env = append(p.env, c.settings...)
	return p
}

// services lists all processes but NATS.
func (c *cluster) services() []*process {
	var out []*process
	out = append(out, c.registries...)
	out = append(out, c.approvals...)
	out = append(out, c.shells...)
	out = append(out, c.brains...)
	return append(out, c.gateways...)
}

// startCluster runs everything and waits until it is ready.
func startCluster(t testing.TB, model *script, postgres *storagetest.Cluster, settings ...string) *cluster {
	t.Helper()
	c := newCluster(t, model, postgres, settings...)
	c.nats.run()
	for _, p := range c.services() {
		p.start()
	}
	for _, p := range c.services() {
		p.waitReady()
	}
	c.signIn()
	return c
}

// operator connects to the NATS server as its operator.
func (c *cluster) operator() *operator {
	c.t.Helper()
	key, err := nats.NkeyOptionFromSeed(natsCredentials(c.dir, "operator"))
	if err != nil {
		c.t.Fatal(err)
	}
	return connectOperator(c.t, c.nats.addr, key)
}

// person is somebody with an account.
type person struct {
	id       int64
	name     string
	password string
	token    string
}

// caller is somebody who calls the HTTP API of one gateway.
type caller struct {
	url, token string
}

var callers = &http.Client{
	Timeout:   90 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second},
}

// do makes a request with a JSON body (nil for none) and reads the JSON of the answer into out, when that is not nil.
// An error means that there was no answer.
func (c caller) do(ctx context.Context, method, path string, in, out any) (status int, header http.Header, err error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		body = strings.NewReader(string(data))
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, body)
	if err != nil {
		return 0, nil, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := callers.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return 0, nil, err
	}
	if out != nil {
		if s, ok := out.(*string); ok {
			*s = string(data)
		} else if err := json.Unmarshal(data, out); err != nil {
			return resp.StatusCode, resp.Header, fmt.Errorf("%s %s: %d: %w: %.200s", method, path, resp.StatusCode, err, data)
		}
	}
	return resp.StatusCode, resp.Header, nil
}

// must is do that fails the test unless the status is the wanted one.
func (c caller) must(t testing.TB, want int, method, path string, in, out any) {
	t.Helper()
	var text string
	status, _, err := c.do(context.Background(), method, path, in, &text)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	if status != want {
		t.Fatalf("%s %s: %d, not %d: %.300s", method, path, status, want, text)
	}
	if out != nil {
		if err := json.Unmarshal([]byte(text), out); err != nil {
			t.Fatalf("%s %s: %v: %.300s", method, path, err, text)
		}
	}
}

// as gives the API of the first gateway for a person; of another with gateway.
func (s *site) as(p *person, gateway ...int) caller {
	n := 0
	if len(gateway) > 0 {
		n = gateway[0]
	}
	return caller{s.urls[n], p.token}
}

// signIn signs the first administrator in.
func (s *site) signIn() {
	s.t.Helper()
	eventually(s.t, 10*time.Second, "the administrator can sign in", func() bool {
		status, _, err := caller{url: s.urls[0]}.do(context.Background(), "POST", "/api/auth/login",
			map[string]string{"username": adminName, "password": adminPassword}, nil)
		return err == nil && status == http.StatusOK
	})
	s.admin = s.login(adminName, adminPassword)
}

func (s *site) login(name, password string) *person {
	s.t.Helper()
	var out struct {
		Token string
		User  struct{ ID int64 }
	}
	caller{url: s.urls[0]}.must(s.t, http.StatusOK, "POST", "/api/auth/login",
		map[string]string{"username": name, "password": password}, &out)
	return &person{id: out.User.ID, name: name, password: password, token: out.Token}
}

// people makes n people, through the API as an administrator does, and signs them in.
func (s *site) people(n int) []*person {
	s.t.Helper()
	out := make([]*person, n)
	var g errgroup.Group
	g.SetLimit(4)
	for i := range out {
		g.Go(func() error {
			name := fmt.Sprintf("person-%d", s.n.Add(1))
			password := "password of " + name
			in := map[string]string{"username": name, "password": password, "role": "MEMBER"}
			var text string
			status, _, err := caller{s.urls[0], s.admin.token}.do(context.Background(), "POST", "/api/users", in, &text)
			if err != nil || status != http.StatusCreated {
				return fmt.Errorf("POST /api/users: %d %s %w", status, text, err)
			}
			var who struct {
				Token string
				User  struct{ ID int64 }
			}
			status, _, err = caller{url: s.urls[0]}.do(context.Background(), "POST", "/api/auth/login",
				map[string]string{"username": name, "password": password}, &who)
			if err != nil || status != http.StatusOK {
				return fmt.Errorf("POST /api/auth/login: %d %w", status, err)
			}
			out[i] = &person{id: who.User.ID, name: name, password: password, token: who.Token}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// newThread makes a conversation.
func (s *site) newThread(p *person) int64 {
	s.t.Helper()
	var out struct{ ID int64 }
	s.as(p).must(s.t, http.StatusCreated, "POST", "/api/chat/threads", map[string]string{"title": "a conversation"}, &out)
	return out.ID
}

// socketURL gives the address of a database on a Unix socket with a host in it, as the settings want it; the socket in
// the query wins.
func socketURL(url string) string {
	return strings.Replace(url, "postgres:///", "postgres://localhost/", 1)
}
