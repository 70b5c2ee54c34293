package telemetry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	// checkTimeout is how long one check may take before it counts as failed.
	checkTimeout = 2 * time.Second
	// checkFresh is how long a report is given again without asking anew; one that says no, a tenth of that.
	checkFresh = time.Second
)

// Report says whether a process can do its work.
type Report struct {
	Ready bool `json:"ready"`
	// Missing has one "name: reason" for each failed check, ordered by name; also for those without which the process is
	// ready all the same.
	Missing []string `json:"missing,omitempty"`
}

// Checks are what a process needs in order to work. All methods are safe for concurrent use.
type Checks struct {
	now     func() time.Time
	timeout time.Duration

	mu       sync.Mutex
	checks   map[string]*check
	draining bool
	last     Report
	lastAt   time.Time
	version  int           // grows when the set of checks changes, so that no older report is kept
	running  chan struct{} // closed when the evaluation in progress ends; nil when there is none
}

type check struct {
	f        func(context.Context) error
	optional bool
	// busy is held while f runs, so that a check that never returns is started once, not once a request.
	busy chan struct{}
}

// NewChecks gives an empty set, which is ready.
func NewChecks() *Checks {
	return &Checks{now: time.Now, timeout: checkTimeout, checks: map[string]*check{}}
}

// Add registers a check under a name that operators understand ("nats", "sql"), replacing one of the same name. It must
// return within the deadline of its context (2 s), and may be called from any goroutine, but never twice at a time. Its
// error is shown to operators: no secrets.
func (c *Checks) Add(name string, f func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks[name] = &check{f: f, busy: make(chan struct{}, 1)}
	c.changed()
}

// AddOptional is Add for what the process can do without for a while: that it fails is told, and nothing more.
func (c *Checks) AddOptional(name string, f func(context.Context) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks[name] = &check{f: f, optional: true, busy: make(chan struct{}, 1)}
	c.changed()
}

// Remove takes a check away.
func (c *Checks) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.checks, name)
	c.changed()
}

// Drain makes the process not ready for good, since it is about to stop: load balancers then send nothing new.
func (c *Checks) Drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.draining = true
}

func (c *Checks) changed() {
	c.version++
	c.lastAt = time.Time{}
}

// Report evaluates all checks at the same time, or gives what was found within the last second. It blocks for at most
// the checks' timeout, or until ctx ends.
func (c *Checks) Report(ctx context.Context) Report {
	for {
		c.mu.Lock()
		if c.draining {
			c.mu.Unlock()
			return Report{Missing: []string{"process: is shutting down"}}
		}
		if !c.lastAt.IsZero() && c.now().Sub(c.lastAt) < checkFresh {
			r := Report{Ready: c.last.Ready, Missing: slices.Clone(c.last.Missing)}
			c.mu.Unlock()
			return r
		}
		if c.running == nil {
			c.running = make(chan struct{})
			// Apart from ctx: one caller that goes away must not spoil the report for the others.
			go c.evaluate()
		}
		running := c.running
		c.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return Report{Missing: []string{"checks: not finished in time"}}
		}
	}
}

func (c *Checks) evaluate() {
	c.mu.Lock()
	names := make([]string, 0, len(c.checks))
	checks := make([]*check, 0, len(c.checks))
	for name := range c.checks {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		checks = append(checks, c.checks[name])
	}
	version := c.version
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, one := range checks {
		wg.Go(func() { errs[i] = one.run(ctx) })
	}
	wg.Wait()

	r := Report{Ready: true}
	for i, err := range errs {
		if err != nil {
			r.Ready = r.Ready && checks[i].optional
			r.Missing = append(r.Missing, names[i]+": "+oneLine(err))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if version == c.version {
		c.last, c.lastAt = r, c.now()
		if !r.Ready {
			c.lastAt = c.lastAt.Add(checkFresh/10 - checkFresh)
		}
	}
	close(c.running)
	c.running = nil
}

func (one *check) run(ctx context.Context) error {
	select {
	case one.busy <- struct{}{}:
	default:
		return errors.New("the last check has not returned yet")
	}
	result := make(chan error, 1)
	go func() {
		defer func() { <-one.busy }()
		defer func() {
			if p := recover(); p != nil {
				result <- fmt.Errorf("the check failed: %v", p)
			}
		}()
		result <- one.f(ctx)
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		// Both may be ready at once: an answer in time counts.
		select {
		case err := <-result:
			return err
		default:
			return errors.New("no answer in time")
		}
	}
}

// oneLine makes an error fit for the report.
func oneLine(err error) string {
	text := []rune(Redact(err.Error()))
	if len(text) > 300 {
		text = append(text[:300], '…')
	}
	for i, r := range text {
		if r < ' ' {
			text[i] = ' '
		}
	}
	return string(text)
}
