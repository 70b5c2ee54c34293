package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudwego/eino/schema"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/services/butler-brain/model"
)

// checkNATS looks at the log: reachable, streams as declared, and when it syncs.
func (d *patient) checkNATS(ctx context.Context) []finding {
	s := d.settings
	target := s.NATS.URL
	var options []nats.Option
	if s.NATS.Credentials != "" {
		signIn, err := bus.SignIn(s.NATS.Credentials)
		if err != nil {
			return []finding{fail("nats", "set BUTLER_NATS_CREDENTIALS to a file with an nkey seed or NATS credentials", "%s", sentence(err))}
		}
		options = append(options, signIn)
	}
	if s.NATS.Embedded() {
		if !d.isRunning {
			return append([]finding{warn("nats", "`butler up` starts it", "the embedded NATS server is not running")}, d.durability(ctx, "")...)
		}
		var err error
		if target, err = operatorURL(s, d.running); err != nil {
			return []finding{fail("nats", "", "%s", sentence(err))}
		}
		options = nil
	}
	options = append(options, nats.Name("butler-doctor"), nats.Timeout(reachTimeout), nats.CustomInboxPrefix("_INBOX_gateway"),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // what is refused shows as an error of its call
	began := time.Now()
	nc, err := nats.Connect(target, options...)
	if err != nil {
		advice := "start it, or mend BUTLER_NATS_URL"
		if errors.Is(err, nats.ErrAuthorization) {
			advice = "set BUTLER_NATS_CREDENTIALS to credentials that it knows; `butler nats-config` makes some"
		}
		return []finding{fail("nats", advice, "%s: %v", hostsOf(target), err)}
	}
	defer nc.Close()
	out := []finding{ok("nats", "version %s at %s, answers in %s", nc.ConnectedServerVersion(), hostsOf(target),
		time.Since(began).Round(100*time.Microsecond))}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(reachTimeout))
	if err != nil {
		return append(out, fail("streams", "", "%v", err))
	}
	// At once: what these credentials may not see is not answered at all, and each waits as long.
	streams := bus.Streams(s.NATS.Replicas)
	found := make([]finding, len(streams))
	var wg sync.WaitGroup
	for i, want := range streams {
		wg.Go(func() { found[i] = checkStream(ctx, js, want) })
	}
	wg.Wait()
	return append(append(out, found...), d.durability(ctx, target)...)
}

// hostsOf leaves of NATS URLs what is no secret.
func hostsOf(urls string) string {
	var out []string
	for part := range strings.SplitSeq(urls, ",") {
		if u, err := url.Parse(part); err == nil && u.Host != "" {
			part = u.Host
		} else if i := strings.LastIndex(part, "@"); i >= 0 {
			part = part[i+1:]
		}
		out = append(out, part)
	}
	return strings.Join(out, ",")
}

// checkStream compares a stream with what is declared.
func checkStream(ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig) finding {
	name := "stream " + want.Name
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fail(name, "start `butler up`, or the services: each makes the streams that it writes", "it does not exist")
	}
	if err != nil {
		return warn(name, "ask with the operator's credentials: a service's may see what it needs", "it cannot be looked at: %v", err)
	}
	info := stream.CachedInfo()
	have := info.Config
	var differences []string
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	if have.Storage != want.Storage {
		differ("storage is %s", have.Storage)
	}
	if have.Retention != want.Retention {
		differ("retention is %s", have.Retention)
	}
	for _, subject := range want.Subjects {
		if !slices.Contains(have.Subjects, subject) {
			differ("it does not take %s", subject)
		}
	}
	if want.SubjectTransform != nil && (have.SubjectTransform == nil || *have.SubjectTransform != *want.SubjectTransform) {
		differ("its partitions differ")
	}
	if have.Replicas < want.Replicas {
		differ("it has %d replicas, not %d", have.Replicas, want.Replicas)
	}
	if len(differences) > 0 {
		return fail(name, "restart butler-brain, which brings it up to date, and see its log if that does not help",
			"differs from what this version declares: %s", strings.Join(differences, ", "))
	}
	missing := 0
	var idle []string
	for _, c := range bus.Consumers(want.Name) {
		cons, err := stream.Consumer(ctx, c.Durable)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			missing++
		}
		service, _, _ := strings.Cut(c.Durable, "-")
		if err == nil && !slices.Contains(idle, service) && !taken(ctx, cons) {
			idle = append(idle, service)
		}
	}
	if missing > 0 {
		return fail(name, "restart butler-brain, which makes them", "%d of its consumers are missing", missing)
	}
	if len(idle) > 0 {
		return warn(name, "start it, or look at its log", "nobody works on it for: %s", strings.Join(idle, ", "))
	}
	if want.Name == bus.ParkedStream && info.State.Msgs > 0 {
		return warn(name, "look at them: nats stream view "+want.Name, "%d items were given up", info.State.Msgs)
	}
	return ok(name, "as declared; %d messages, %.1f MiB", info.State.Msgs, float64(info.State.Bytes)/(1<<20))
}

// taken says whether somebody asks for what a consumer has. Between two requests there may be none for an instant.
func taken(ctx context.Context, c jetstream.Consumer) bool {
	for range 3 {
		info, err := c.Info(ctx)
		if err != nil || info.NumWaiting > 0 || info.NumAckPending > 0 {
			return true // or nobody knows
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(150 * time.Millisecond):
		}
	}
	return false
}

const syncAdvice = "a power cut can lose what was acknowledged within that time; unset BUTLER_NATS_SYNC, or set sync_interval: always " +
	"in the server's jetstream block"

// durability says when events are written through to disk.
func (d *patient) durability(ctx context.Context, target string) []finding {
	s := d.settings
	if s.NATS.Embedded() {
		if s.NATS.SyncInterval == 0 {
			return []finding{ok("durability", "each event is synced to disk before it is acknowledged (BUTLER_NATS_SYNC=always)")}
		}
		return []finding{warn("durability", syncAdvice, "events are synced to disk every %s (BUTLER_NATS_SYNC)", s.NATS.SyncInterval)}
	}
	sync, always, err := monitored(ctx, target)
	switch {
	case err != nil:
		return []finding{warn("durability", "look for sync_interval: always in its jetstream block; with its monitoring on (http: 8222) this "+
			"command can see it", "when the NATS server syncs is its own setting, which cannot be seen from here")}
	case always:
		return []finding{ok("durability", "each event is synced to disk before it is acknowledged (sync_interval: always)")}
	default:
		return []finding{warn("durability", syncAdvice, "events are synced to disk every %s", sync)}
	}
}

// monitored asks a NATS server's monitoring port, at its usual number, when it syncs.
func monitored(ctx context.Context, target string) (every time.Duration, always bool, err error) {
	first, _, _ := strings.Cut(hostsOf(target), ",")
	host, _, err := net.SplitHostPort(first)
	if err != nil {
		host = first
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, "8222")+"/jsz?config=1", nil)
	if err != nil {
		return 0, false, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	var body struct {
		Config *struct {
			SyncInterval time.Duration `json:"sync_interval"`
			SyncAlways   bool          `json:"sync_always"`
		} `json:"config"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&body); err != nil {
		return 0, false, err
	}
	if body.Config == nil {
		return 0, false, errors.New("not a NATS monitoring port")
	}
	return body.Config.SyncInterval, body.Config.SyncAlways, nil
}

// checkSQL looks at the database.
func (d *patient) checkSQL(ctx context.Context) []finding {
	o := &operation{settings: d.settings}
	defer o.close()
	db, err := o.openDatabase(ctx)
	if fault.CodeOf(err) == fault.NotFound {
		return []finding{warn("sql", "`butler up` makes it", "%s", fault.MessageOf(err))}
	}
	if err != nil {
		return []finding{fail("sql", "mend BUTLER_DATABASE_URL", "%s", sentence(err))}
	}
	if err := db.Ping(ctx); err != nil {
		return []finding{fail("sql", "start it, or mend BUTLER_DATABASE_URL; chat goes on meanwhile, sign-ins do not", "%s: %s", db, sentence(err))}
	}
	st, err := newStore(db, d.settings)
	if err != nil {
		return []finding{fail("sql", "", "%s", sentence(err))}
	}
	people, err := st.People(ctx)
	if err != nil {
		return []finding{fail("sql", "start the gateway, which makes its tables; if it did, see its log",
			"%s answers, but its tables cannot be read: %s", db, sentence(err))}
	}
	state, err := st.Projection(ctx)
	if err != nil {
		return []finding{fail("sql", "start this version's gateway, which brings its tables up to date",
			"%s answers, but its tables are not those of this version: %s", db, sentence(err))}
	}
	return []finding{ok("sql", "%s, tables are there; %d people, %d messages in the history", db, max(len(people)-1, 0), state.Applied)}
}

// checkModel asks the model's endpoint for its models, and with modelCall for one word.
func (d *patient) checkModel(ctx context.Context) []finding {
	m := d.settings.Model
	if m.Demo() {
		return []finding{ok("model", "the built-in demo model answers (set BUTLER_BASE_URL and BUTLER_MODEL for a real one)")}
	}
	out := []finding{d.listModels(ctx)}
	if !d.modelCall {
		return out
	}
	client, err := newModel(d.settings, model.Config{})
	if err != nil {
		return append(out, fail("model", "", "%s", sentence(err)))
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := time.Now()
	ask := []*schema.Message{schema.UserMessage("Say ok.")}
	if _, err := client.Stream(ctx, ask, nil, model.CallOptions{MaxTokens: 16}, func(string) {}); err != nil {
		return append(out, fail("model", "mend BUTLER_BASE_URL, BUTLER_API_TOKEN or BUTLER_MODEL", "a call of %s failed: %s",
			m.Name, model.Sentence(model.ReasonOf(err), d.settings.Language)))
	}
	return append(out, ok("model", "%s answered in %s", m.Name, time.Since(began).Round(time.Millisecond)))
}

func (d *patient) listModels(ctx context.Context) finding {
	m := d.settings.Model
	ctx, cancel := context.WithTimeout(ctx, 2*reachTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(m.BaseURL, "/")+"/models", nil)
	if err != nil {
		return fail("model", "mend BUTLER_BASE_URL", "%s is not an address", m.BaseURL)
	}
	if m.APIToken != "" {
		req.Header.Set("Authorization", "Bearer "+m.APIToken.Reveal())
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		return fail("model", "start it, or mend BUTLER_BASE_URL", "%s cannot be reached: %v", req.URL.Host, err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return fail("model", "set BUTLER_API_TOKEN to a valid token", "%s refuses the token (%d)", req.URL.Host, resp.StatusCode)
	default:
		return warn("model", "try --model-call", "%s is there, but does not list its models (%d)", req.URL.Host, resp.StatusCode)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<20)).Decode(&list); err != nil {
		return warn("model", "try --model-call", "%s lists its models in a form that is not OpenAI's", req.URL.Host)
	}
	var ids []string
	for _, model := range list.Data {
		if model.ID == m.Name {
			return ok("model", "%s has %s", req.URL.Host, m.Name)
		}
		ids = append(ids, oneLine(model.ID))
	}
	return warn("model", "try --model-call, or set BUTLER_MODEL to one that it has", "%s does not list %s among its %d models (%s)",
		req.URL.Host, m.Name, len(ids), strings.Join(ids[:min(len(ids), modelIDsShown)], ", "))
}

// checkApproval looks at the policy and at the key that signs grants, without making one.
func (d *patient) checkApproval(context.Context) []finding {
	a := d.settings.Approval
	if _, err := approvalPolicy(d.settings); err != nil {
		return []finding{fail("approval", "mend the file: approval does not start with it", "%s", sentence(err))}
	}
	policy := "the built-in policy"
	if a.PolicyFile != "" {
		policy = "the policy of " + a.PolicyFile
	}
	if _, err := os.Stat(a.KeyFile); errors.Is(err, fs.ErrNotExist) {
		return []finding{ok("approval", "%s; the key %s is made when approval starts", policy, a.KeyFile)}
	}
	if _, _, err := approvalSigner(d.settings); err != nil {
		return []finding{fail("approval", "mend the file, or remove it to have a new key made: what it has signed is not honoured then", "%s", sentence(err))}
	}
	return []finding{ok("approval", "%s; grants are signed with %s", policy, a.KeyFile)}
}
