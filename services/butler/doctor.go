package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/butlerhub/butler/pkg/config"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler/client"
)

// Outcomes of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// finding is one line of `butler doctor`.
type finding struct {
	Check  string `json:"check"`
	Status string `json:"status"` // ok, warn or fail
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"`
}

func ok(check, format string, args ...any) finding {
	return finding{Check: check, Status: checkOK, Detail: fmt.Sprintf(format, args...)}
}

func warn(check, advice, format string, args ...any) finding {
	return finding{Check: check, Status: checkWarn, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

func fail(check, advice, format string, args ...any) finding {
	return finding{Check: check, Status: checkFail, Detail: fmt.Sprintf(format, args...), Advice: advice}
}

// patient is what `butler doctor` looks at.
type patient struct {
	app       *app
	settings  config.Settings
	running   running // of `butler up` on the data folder
	isRunning bool
	modelCall bool
	now       func() time.Time
}

func (a *app) doctorCommand() *cobra.Command {
	var modelCall bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check settings, NATS, SQL, model, shells, disk and clock",
		Long: `Looks at everything that Butler needs, as the settings have it, and says for each part whether it is well
(ok, warn, fail) and what to do. It changes nothing. The exit code is 1 when something fails.

The model's endpoint is asked for its list of models; with --model-call also for one word, which may cost.`,
		Example: `  butler doctor
  butler doctor --model-call
  butler doctor --json | jq '.[] | select(.status != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return a.do(func(ctx context.Context) error { return a.doctor(ctx, modelCall) })
		},
	}
	cmd.Flags().BoolVar(&modelCall, "model-call", false, "ask the model for one word")
	return cmd
}

func (a *app) doctor(ctx context.Context, modelCall bool) error {
	settings, warnings, err := a.settings()
	if err != nil {
		return a.printFindings([]finding{fail("settings", "mend them; `butler config check FILE` checks a file", "%v", err)})
	}
	d := &patient{app: a, settings: settings, modelCall: modelCall, now: time.Now}
	d.running, d.isRunning = readRunning(settings)
	var findings []finding
	findings = append(findings, d.checkSettings(warnings)...)
	for _, check := range []func(context.Context) []finding{
		d.checkDataDir, d.checkDisk, d.checkClock, d.checkPorts, d.checkGateway, d.checkNATS, d.checkSQL, d.checkModel, d.checkApproval, d.checkShell,
	} {
		findings = append(findings, check(ctx)...)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return a.printFindings(findings)
}

func (a *app) printFindings(findings []finding) error {
	failed := 0
	for _, f := range findings {
		if f.Status == checkFail {
			failed++
		}
	}
	if a.json {
		if err := a.printJSON(findings); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			fmt.Fprintf(a.out, "%-4s  %-13s  %s\n", f.Status, f.Check, strings.ReplaceAll(f.Detail, "\n", "\n                     "))
			if f.Advice != "" {
				fmt.Fprintf(a.out, "                     → %s\n", f.Advice)
			}
		}
	}
	if failed > 0 {
		if !a.json {
			fmt.Fprintf(a.err, "butler: %d of %d checks failed\n", failed, len(findings))
		}
		return errReported
	}
	return nil
}

func (d *patient) checkSettings(warnings []config.Warning) []finding {
	files, env := map[string]bool{}, 0
	for _, v := range d.settings.Describe() {
		switch v.Origin.Source {
		case config.FromFile:
			file, _, _ := strings.Cut(v.Origin.Detail, ":")
			files[file] = true
		case config.FromEnv:
			env++
		case config.FromDefault, config.FromOther:
		}
	}
	from := "no settings file"
	for file := range files {
		from = "file " + file
	}
	out := []finding{ok("settings", "valid; %s, %d from the environment (`butler config` shows them)", from, env)}
	for _, w := range warnings {
		out = append(out, warn("settings", "", "%s", w))
	}
	return out
}

func (d *patient) checkDataDir(context.Context) []finding {
	s := d.settings
	if !s.NATS.Embedded() && s.Database.URL != "" {
		return nil // nothing is kept there
	}
	info, err := os.Stat(s.DataDir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return []finding{warn("data", "`butler up` makes it", "the data folder %s is not there yet", s.DataDir)}
	case err != nil:
		return []finding{fail("data", "run this as the user who runs Butler, or set BUTLER_DATA_DIR", "%s: %v", s.DataDir, pathCause(err))}
	case !info.IsDir():
		return []finding{fail("data", "set BUTLER_DATA_DIR to a folder", "%s is not a folder", s.DataDir)}
	case info.Mode().Perm()&0o077 != 0:
		return []finding{warn("data", "chmod 700 "+s.DataDir, "others on this machine can look into %s", s.DataDir)}
	}
	if d.isRunning {
		return []finding{ok("data", "%s, in use by process %d", s.DataDir, d.running.PID)}
	}
	lock, err := lockDir(s.DataDir)
	if err != nil {
		return []finding{fail("data", "", "%s", sentence(err))}
	}
	_ = lock.Close()
	return []finding{ok("data", "%s can be written", s.DataDir)}
}

// Free space below which the disk is worth a warning, or a failure: JetStream stops taking events when it is full.
const (
	littleSpace   = 2 << 30
	noSpace       = 256 << 20
	bytesPerGiB   = 1 << 30
	modelIDsShown = 3
)

func (d *patient) checkDisk(context.Context) []finding {
	dir := d.settings.DataDir
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return []finding{warn("disk", "", "the free space of %s is not known: %v", dir, err)}
	}
	free := fs.Bavail * uint64(fs.Bsize) //nolint:unconvert // its type differs between systems
	detail := fmt.Sprintf("%.1f GiB free at %s", float64(free)/bytesPerGiB, dir)
	const advice = "make space: a full disk stops Butler from accepting messages"
	switch {
	case free < noSpace:
		return []finding{fail("disk", advice, "%s", detail)}
	case free < littleSpace:
		return []finding{warn("disk", advice, "%s", detail)}
	}
	return []finding{ok("disk", "%s", detail)}
}

// checkClock compares the clock with that of the gateway, or looks whether it can be right at all.
func (d *patient) checkClock(ctx context.Context) []finding {
	now := d.now()
	const advice = "set the clock, with NTP: sign-ins and timers depend on it"
	if now.Year() < 2025 {
		return []finding{fail("clock", advice, "this machine believes that it is %s", now.Format(time.RFC3339))}
	}
	target, err := d.gatewayURL()
	if err != nil {
		return []finding{ok("clock", "%s", now.Format(time.RFC3339))}
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, target+"/api/ping", nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return []finding{ok("clock", "%s", now.Format(time.RFC3339))}
	}
	_ = resp.Body.Close()
	there, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return []finding{ok("clock", "%s", now.Format(time.RFC3339))}
	}
	if diff := d.now().Sub(there).Abs(); diff > 5*time.Second {
		return []finding{warn("clock", advice, "this machine's clock and the gateway's differ by %s", diff.Round(time.Second))}
	}
	return []finding{ok("clock", "%s, as the gateway's", now.Format(time.RFC3339))}
}

// gatewayURL is the gateway that the settings, or the command line, mean.
func (d *patient) gatewayURL() (string, error) {
	if d.app.server != "" || d.app.env("BUTLER_SERVER") != "" {
		c, err := d.app.anonymous()
		if err != nil {
			return "", err
		}
		return c.Server(), nil
	}
	if d.isRunning && d.running.HTTP != "" {
		return d.running.HTTP, nil
	}
	return "http://" + localAddr(d.settings.HTTP.Addr), nil
}

func (d *patient) checkPorts(ctx context.Context) []finding {
	if d.isRunning || !d.settings.NATS.Embedded() {
		return nil // they are taken by Butler itself, or by services whose state is not known here
	}
	var out []finding
	for _, p := range []struct{ setting, addr string }{
		{"BUTLER_HTTP_ADDR", d.settings.HTTP.Addr}, {"BUTLER_OPS_ADDR", d.settings.Ops.Addr},
		{"BUTLER_NATS_ADDR", d.settings.NATS.Addr},
	} {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.addr)
		if err != nil {
			out = append(out, fail("ports", "stop what has it, or set "+p.setting+" to another address",
				"%s cannot be used: %v", p.addr, cause(err)))
			continue
		}
		_ = l.Close()
	}
	if len(out) == 0 {
		out = append(out, ok("ports", "free: %s, %s, %s", d.settings.HTTP.Addr, d.settings.Ops.Addr, d.settings.NATS.Addr))
	}
	return out
}

// cause takes the address out of a network error, since the sentence names it.
func cause(err error) error {
	if e, ok := errors.AsType[*net.OpError](err); ok && e.Err != nil {
		return e.Err
	}
	return err
}

// checkGateway asks a running gateway whether it is ready, and for what it waits.
func (d *patient) checkGateway(ctx context.Context) []finding {
	target, err := d.gatewayURL()
	if err != nil {
		return []finding{fail("gateway", "", "%s", sentence(err))}
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	c, err := client.New(target, "", "butler/"+version)
	if err != nil {
		return []finding{fail("gateway", "", "%s", sentence(err))}
	}
	defer c.Close()
	if err := c.Ping(ctx); err != nil {
		if !d.isRunning && fault.CodeOf(err) == fault.Unavailable {
			return []finding{warn("gateway", "start it with `butler up`, or name it with --server", "no Butler answers at %s", target)}
		}
		return []finding{fail("gateway", "see its log", "%s", sentence(err))}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target+"/ready", nil)
	if err != nil {
		return []finding{fail("gateway", "", "%v", err)}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return []finding{fail("gateway", "see its log", "%s does not answer: %v", target, err)}
	}
	defer func() { _ = resp.Body.Close() }()
	var report struct {
		Ready   bool     `json:"ready"`
		Missing []string `json:"missing"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&report); err != nil {
		return []finding{warn("gateway", "", "%s answers, but a proxy keeps its /ready away", target)}
	}
	if !report.Ready {
		return []finding{fail("gateway", "it goes on by itself when that is there",
			"%s is not ready: %s", target, strings.Join(report.Missing, "; "))}
	}
	return []finding{ok("gateway", "ready at %s", target)}
}
