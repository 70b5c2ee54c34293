package bus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// This file keeps the positions of the consumers of CHAT on an embedded server.
//
// JetStream keeps the position of a durable consumer in a file of its own, which it writes up to ten times a second while
// the consumer is used; where the log is synced before each acknowledgement, so is that file, and its folder. With a
// consumer for each partition these were more syncs than the log itself has. So here the consumers keep their positions in
// memory, and the server notes once a second, in one file, up to where each has settled everything. After a restart they
// are made anew from there: what was settled since the last note is delivered again, and found settled in the log.
//
// A note may be too old, never too new: a snapshot counts only for a log that has everything the snapshot knew of. That is
// why some older ones are kept: a log that is synced now and then may have lost its end, and with it answers.
//
// On a server of its own, and on a cluster, consumers keep their files: there nobody could tell a consumer that lost its
// memory where to go on.

const (
	positionsFile    = "butler-positions.json"
	positionsEvery   = time.Second
	positionsTimeout = 2 * time.Second
	// olderSnapshots are kept, olderEvery apart: together more than a log can lose that is synced every two minutes.
	olderSnapshots = 6
	olderEvery     = time.Minute
	// sureAfter is after how many ticks a consumer is believed that it waits for nothing up to what was the log's end: the
	// server tells consumers of a new message a little after it has stored it.
	sureAfter = 3
)

// snapshot says up to which sequence each consumer of a stream has settled everything.
type snapshot struct {
	Created time.Time         `json:"created"` // of the stream: another one of the same name has other positions
	Last    uint64            `json:"last"`    // the stream's last sequence, not before Settled was read
	At      time.Time         `json:"at"`
	Settled map[string]uint64 `json:"settled"`
}

// positions takes snapshots of the consumers of CHAT and keeps them in a file.
type positions struct {
	path string
	log  *slog.Logger
	nc   *nats.Conn
	js   jetstream.JetStream
	done chan struct{}
	wg   sync.WaitGroup

	mu        sync.Mutex
	snapshots []snapshot // the newest first
	quiet     bool       // the newest snapshot says that all is settled
	lasts     []uint64   // the stream's last sequence at each of the last ticks, the newest first
}

// keepPositions begins to take snapshots for an embedded server, until close.
func keepPositions(s *Server, dir string, log *slog.Logger) (*positions, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &positions{path: filepath.Join(dir, positionsFile), log: log, done: make(chan struct{})}
	p.read()
	nc, err := nats.Connect("", append(s.connectOptions(), nats.Name("butler-positions"), nats.CustomInboxPrefix("_INBOX_positions"))...)
	if err != nil {
		return nil, fmt.Errorf("bus: %w", err)
	}
	p.nc = nc
	if p.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(positionsTimeout)); err != nil {
		nc.Close()
		return nil, fmt.Errorf("bus: %w", err)
	}
	p.wg.Go(p.run)
	return p, nil
}

// close takes a last snapshot.
func (p *positions) close() {
	close(p.done)
	p.wg.Wait()
	p.take()
	p.nc.Close()
}

func (p *positions) run() {
	tick := time.NewTicker(positionsEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-tick.C:
			p.take()
		}
	}
}

// read takes up what the file says. Without it, or when it cannot be read, every consumer begins at the start of the log.
func (p *positions) read() {
	data, err := os.ReadFile(p.path)
	if err == nil {
		err = json.Unmarshal(data, &p.snapshots)
	}
	if err != nil && !os.IsNotExist(err) {
		p.log.Warn("the consumers' positions cannot be read; the whole log is looked through", "error", err)
		p.snapshots = nil
	}
}

// take makes a snapshot when there is news. Without one the next start looks at more of the log: nothing else.
func (p *positions) take() {
	ctx, cancel := context.WithTimeout(context.Background(), positionsTimeout)
	defer cancel()
	before, err := p.js.Stream(ctx, ChatStream)
	if err != nil {
		return // not there yet
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trust(before.CachedInfo())
	last := before.CachedInfo().State.LastSeq
	if p.quiet && len(p.snapshots) > 0 && p.snapshots[0].Last == last {
		return
	}
	sure := uint64(0)
	if len(p.lasts) == sureAfter {
		sure = p.lasts[sureAfter-1]
	}
	p.lasts = append([]uint64{last}, p.lasts[:min(len(p.lasts), sureAfter-1)]...)
	next := snapshot{Created: before.CachedInfo().Created, At: time.Now(), Settled: map[string]uint64{}}
	if len(p.snapshots) > 0 {
		next.Settled = maps.Clone(p.snapshots[0].Settled)
	}
	quiet, found := true, false
	list := before.ListConsumers(ctx)
	for info := range list.Info() {
		if info.Config.Durable == "" || !info.Config.MemoryStorage {
			continue
		}
		found = true
		next.Settled[info.Name] = settled(info, sure)
		quiet = quiet && next.Settled[info.Name] >= last
	}
	// What is acknowledged was settled by an event: so the log's end is asked for again.
	after, err := before.Info(ctx)
	if err != nil || list.Err() != nil || !found {
		return
	}
	next.Last = after.State.LastSeq
	if n := len(p.snapshots); n > 1 && next.At.Sub(p.snapshots[1].At).Abs() < olderEvery {
		p.snapshots = p.snapshots[1:]
	}
	p.snapshots = append([]snapshot{next}, p.snapshots[:min(len(p.snapshots), olderSnapshots)]...)
	p.quiet = quiet && next.Last == last
	if err := p.write(); err != nil {
		p.log.Warn("the consumers' positions cannot be written; the next start looks through more of the log", "error", err)
	}
}

func (p *positions) write() error {
	data, err := json.Marshal(p.snapshots)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(p.path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync() // else a power cut may leave an empty file
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(p.path+".new", p.path) // its folder is not synced: the older file does as well
}

// trust drops the snapshots that know of more than the stream has. The caller holds mu.
func (p *positions) trust(stream *jetstream.StreamInfo) {
	for len(p.snapshots) > 0 {
		if s := p.snapshots[0]; s.Created.Equal(stream.Created) && s.Last <= stream.State.LastSeq {
			return
		}
		p.snapshots, p.lasts = p.snapshots[1:], nil
	}
}

// after gives the sequence after which a consumer that is made anew begins, 0 for the start of the log.
func (p *positions) after(stream *jetstream.StreamInfo, consumer string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trust(stream)
	if len(p.snapshots) == 0 {
		return 0
	}
	return p.snapshots[0].Settled[consumer]
}

// settled gives the sequence up to which a consumer has nothing left to do. Of what comes up to sure it was told.
func settled(info *jetstream.ConsumerInfo, sure uint64) uint64 {
	floor := max(info.AckFloor.Stream, max(info.Config.OptStartSeq, 1)-1)
	switch {
	case info.NumAckPending > 0:
		return floor
	case info.NumPending > 0:
		return max(floor, info.Delivered.Stream)
	default:
		return max(floor, info.Delivered.Stream, sure)
	}
}

// ensureInMemory makes a consumer whose position is in memory, after what was settled. One from before this was so, with
// its position in a file, is replaced.
func (b *Bus) ensureInMemory(ctx context.Context, s jetstream.Stream, want jetstream.ConsumerConfig) error {
	want.MemoryStorage = true
	have, err := s.Consumer(ctx, want.Durable)
	if err == nil && have.CachedInfo().Config.MemoryStorage {
		if sameConsumer(have.CachedInfo().Config, want) {
			return nil
		}
		// Where it began cannot be changed.
		want.DeliverPolicy, want.OptStartSeq = have.CachedInfo().Config.DeliverPolicy, have.CachedInfo().Config.OptStartSeq
		_, err = s.UpdateConsumer(ctx, want)
		return err
	}
	after := b.server.positions.after(s.CachedInfo(), want.Durable)
	if err == nil {
		after = max(after, settled(have.CachedInfo(), 0))
		if err := s.DeleteConsumer(ctx, want.Durable); err != nil {
			return err
		}
	}
	if after > 0 {
		want.DeliverPolicy, want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, after+1
	}
	_, err = s.CreateConsumer(ctx, want)
	return err
}
