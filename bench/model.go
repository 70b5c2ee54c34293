package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/cloudwego/eino/schema"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/services/butler-brain/model"
)

const modelQuestion = "What is the state of the three servers in the cellar? This is a question of the usual length."

// modelCase is a number of callers at the same time.
type modelCase struct {
	name    string
	callers int

	own, limit         durations
	ownRate, limitRate series
	ratio              series
}

// models measures a call of the model through Eino beside an HTTP client that reads the same stream.
func models(ctx context.Context, r *rig, out *report) error {
	client, err := model.New(model.Config{BaseURL: r.modelURL, Model: "test-model", APIToken: "none-needed"})
	if err != nil {
		return err
	}
	defer client.Close()
	plain := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: r.o.people}}
	defer plain.CloseIdleConnections()
	msgs := []*schema.Message{schema.SystemMessage("You are Butler."), schema.UserMessage(modelQuestion)}
	tools := []*schema.ToolInfo{{Name: "list_agents", Desc: "Lists the agents."}}
	eino := func(ctx context.Context) error {
		size := 0
		res, err := client.Stream(ctx, msgs, tools, model.CallOptions{}, func(s string) { size += len(s) })
		if err != nil {
			return err
		}
		if size == 0 || size != len(res.Message.Content) {
			return fmt.Errorf("%d bytes were streamed of %d", size, len(res.Message.Content))
		}
		return nil
	}
	body, err := json.Marshal(map[string]any{
		"model": "test-model", "stream": true, "stream_options": map[string]any{"include_usage": true},
		"messages": []map[string]string{{"role": "system", "content": "You are Butler."}, {"role": "user", "content": modelQuestion}},
	})
	if err != nil {
		return err
	}
	limit := func(ctx context.Context) error { return readStream(ctx, plain, r.modelURL+"/chat/completions", body) }

	cases := []*modelCase{{name: "1 caller", callers: 1}, {name: fmt.Sprintf("%d callers", r.o.people), callers: r.o.people}}
	for _, c := range cases { // every connection is opened before it counts
		if err := c.round(ctx, 0, 3, eino, limit); err != nil {
			return err
		}
		*c = modelCase{name: c.name, callers: c.callers}
	}
	for round := range r.o.rounds {
		r.say("model: round %d of %d", round+1, r.o.rounds)
		for _, c := range inTurn(cases, round) {
			n := r.o.appends
			if c.callers > 1 {
				n = max(2, 4*r.o.appends/c.callers)
			}
			if err := c.round(ctx, round, n, eino, limit); err != nil {
				return err
			}
		}
	}
	for _, c := range cases {
		const g = "model"
		out.add(g, c.name, "p50", c.own.ms(0.5), "ms")
		out.add(g, c.name, "p99", c.own.ms(0.99), "ms")
		out.addSeries(g, c.name, "calls", c.ownRate, "/s")
		out.add(g, c.name, "raw p50", c.limit.ms(0.5), "ms")
		out.add(g, c.name, "raw p99", c.limit.ms(0.99), "ms")
		out.addSeries(g, c.name, "raw calls", c.limitRate, "/s")
		out.addSeries(g, c.name, "× raw", c.ratio, "")
	}
	out.table(table{
		group: "model", rows: "callers",
		title: "Model: one streamed answer of 20 instant chunks through Eino, from a model in another process",
		notes: []string{
			"raw: a plain HTTP client that reads the same stream line by line and decodes nothing",
			"known of Eino 0.9.5 on such a machine: model stream 0.37 ms and 4,600/s, its ADK runner 0.45 ms and 3,600/s",
		},
	})
	return nil
}

// round makes n calls by each caller, all of one kind and then all of the other.
func (c *modelCase) round(ctx context.Context, round, n int, eino, limit func(context.Context) error) error {
	var ownP50, limitP50 float64
	kinds := []func() error{
		func() error {
			times, took, err := c.calls(ctx, n, eino)
			c.own, ownP50 = append(c.own, times...), times.ms(0.5)
			c.ownRate = append(c.ownRate, float64(len(times))/took.Seconds())
			return err
		},
		func() error {
			times, took, err := c.calls(ctx, n, limit)
			c.limit, limitP50 = append(c.limit, times...), times.ms(0.5)
			c.limitRate = append(c.limitRate, float64(len(times))/took.Seconds())
			return err
		},
	}
	for _, f := range inTurn(kinds, round) {
		if err := f(); err != nil {
			return err
		}
	}
	c.ratio = append(c.ratio, ownP50/limitP50)
	return nil
}

func (c *modelCase) calls(ctx context.Context, n int, call func(context.Context) error) (durations, time.Duration, error) {
	var mu sync.Mutex
	var all durations
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range c.callers {
		g.Go(func() error {
			own := make(durations, 0, n)
			for range n {
				start := time.Now()
				if err := call(ctx); err != nil {
					return err
				}
				own = append(own, time.Since(start))
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, own...)
			return nil
		})
	}
	err := g.Wait()
	return all, time.Since(began), err
}

// readStream reads a whole streamed answer and checks that it has its end.
func readStream(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	lines := bufio.NewScanner(resp.Body)
	whole := false
	for lines.Scan() {
		whole = whole || bytes.Equal(lines.Bytes(), []byte("data: [DONE]"))
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !whole {
		return errors.New("the model's stream has no end")
	}
	return nil
}
