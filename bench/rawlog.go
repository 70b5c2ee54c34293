package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/butlerhub/butler/pkg/bus"
	"github.com/butlerhub/butler/pkg/chat"
)

// sync is a setting of the log.
type syncSetting struct {
	name     string        // as BUTLER_NATS_SYNC takes it
	interval time.Duration // as the server takes it
}

var syncSettings = []syncSetting{{"always", 0}, {"2m", 2 * time.Minute}}

// rawLog is the limit: an embedded NATS server with Butler's stream and nothing else, reached over TCP.
type rawLog struct {
	server *bus.Server
	url    string
	nc     *nats.Conn
	js     jetstream.JetStream
	units  atomic.Int64
}

func (r *rig) newRawLog(ctx context.Context, s syncSetting) (*rawLog, error) {
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	password := rand.Text()
	server, err := bus.StartServer(bus.ServerOptions{Dir: dir, Addr: "127.0.0.1:0", Sync: s.interval, Operator: password})
	if err != nil {
		return nil, err
	}
	r.onClose(server.Close)
	l := &rawLog{server: server}
	u, err := url.Parse(server.URL())
	if err != nil {
		return nil, err
	}
	u.User = url.UserPassword("operator", password)
	l.url = u.String()
	if l.nc, l.js, err = connect(l.url); err != nil {
		return nil, err
	}
	r.onClose(l.nc.Close)
	for _, c := range bus.Streams(1) {
		if c.Name == bus.ChatStream {
			if _, err := l.js.CreateStream(ctx, c); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

func connect(url string) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return nc, js, nil
}

// unit gives a new turn, whose name is as long as those of Butler's are.
func (l *rawLog) unit() chat.Turn {
	return chat.Turn{Session: chat.Session{Person: 12, Thread: 34}, ID: fmt.Sprintf("person-12-r0-%06d", l.units.Add(1))}
}

// stored is a message as it stands in a log.
type stored struct {
	header nats.Header
	data   []byte
}

// newest reads the newest question and answer from Butler's own log.
func (b *product) newest(ctx context.Context) (asked, answer stored, err error) {
	password, _, err := bus.OperatorPassword(b.dir)
	if err != nil {
		return asked, answer, err
	}
	nc, js, err := connect("nats://operator:" + password + "@" + b.nats)
	if err != nil {
		return asked, answer, err
	}
	defer nc.Close()
	s, err := js.Stream(ctx, bus.ChatStream)
	if err != nil {
		return asked, answer, err
	}
	for filter, to := range map[string]*stored{chat.AllAsked: &asked, chat.AllAnswer: &answer} {
		m, err := s.GetLastMsgForSubject(ctx, filter)
		if err != nil {
			return asked, answer, fmt.Errorf("the newest %s: %w", filter, err)
		}
		*to = stored{m.Header, m.Data}
	}
	return asked, answer, nil
}

// append publishes m conditionally and gives its sequence.
func (l *rawLog) append(ctx context.Context, m stored, unit chat.Turn, kind chat.Kind, expect uint64) (uint64, error) {
	h := maps.Clone(m.header)
	h[jetstream.MsgIDHeader] = []string{unit.ID + string(kind)}
	h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(expect, 10)}
	h[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{unit.Filter()}
	ack, err := l.js.PublishMsg(ctx, &nats.Msg{Subject: unit.Subject(kind), Header: h, Data: m.data})
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// turns has publishers append n questions and answers each, over one connection, and gives the times of the pairs and of
// the whole.
func (l *rawLog) turns(ctx context.Context, publishers, n int, asked, answer stored) (durations, time.Duration, error) {
	var mu sync.Mutex
	var all durations
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range publishers {
		g.Go(func() error {
			own := make(durations, 0, n)
			for range n {
				unit := l.unit()
				start := time.Now()
				seq, err := l.append(ctx, asked, unit, chat.Asked, 0)
				if err != nil {
					return err
				}
				if _, err := l.append(ctx, answer, unit, chat.Answer, seq); err != nil {
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
