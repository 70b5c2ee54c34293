package bus

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

func TestSettled(t *testing.T) {
	t.Parallel()
	info := func(start, floor, delivered uint64, ackPending int, pending uint64) *jetstream.ConsumerInfo {
		return &jetstream.ConsumerInfo{
			Config:        jetstream.ConsumerConfig{OptStartSeq: start},
			AckFloor:      jetstream.SequenceInfo{Stream: floor},
			Delivered:     jetstream.SequenceInfo{Stream: delivered},
			NumAckPending: ackPending, NumPending: pending,
		}
	}
	for name, c := range map[string]struct {
		info *jetstream.ConsumerInfo
		sure uint64
		want uint64
	}{
		"new":                        {info(0, 0, 0, 0, 5), 9, 0},
		"new in the middle":          {info(8, 0, 0, 0, 5), 9, 7},
		"something is being done":    {info(8, 10, 12, 1, 0), 20, 10},
		"something waits":            {info(0, 10, 12, 0, 3), 20, 12},
		"nothing of a longer log":    {info(0, 10, 12, 0, 0), 20, 20},
		"nothing, told of less":      {info(0, 10, 12, 0, 0), 11, 12},
		"first thing is being done":  {info(8, 0, 9, 1, 0), 20, 7},
		"nothing was ever delivered": {info(0, 0, 0, 0, 0), 20, 20},
	} {
		require.Equal(t, c.want, settled(c.info, c.sure), name)
	}
}

func TestPositionsOfAnotherLogDoNotCount(t *testing.T) {
	t.Parallel()
	made := time.Now()
	p := &positions{snapshots: []snapshot{
		{Created: made, Last: 30, Settled: map[string]uint64{"c": 29}},
		{Created: made, Last: 20, Settled: map[string]uint64{"c": 19}},
	}}
	log := func(created time.Time, last uint64) *jetstream.StreamInfo {
		return &jetstream.StreamInfo{Created: created, State: jetstream.StreamState{LastSeq: last}}
	}
	require.EqualValues(t, 29, p.after(log(made, 40), "c"))
	require.EqualValues(t, 0, p.after(log(made, 40), "unknown"))
	require.EqualValues(t, 19, p.after(log(made, 25), "c"), "the log lost its end: an older snapshot")
	require.EqualValues(t, 19, p.after(log(made, 40), "c"), "what does not fit once never does")
	require.EqualValues(t, 0, p.after(log(made.Add(1), 40), "c"), "another stream")
}

// The consumers of CHAT go on where they were after a restart, also when their positions are still in files, or lost.
func TestPositionsSurviveARestart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	open := func() (*Server, *Bus) {
		srv, err := StartServer(ServerOptions{Dir: dir, Sync: time.Minute})
		require.NoError(t, err)
		b, err := Connect(ctx, Options{Server: srv, Service: "brain"})
		require.NoError(t, err)
		return srv, b
	}
	publish := func(b *Bus, from, to int) {
		for i := from; i <= to; i++ {
			_, err := b.Publish(ctx, ChatStream, NewEvent("butler.chat.asked", b.Source(), fmt.Sprintf("butler.chat.7.12.m%d.asked", i), []byte("{}")))
			require.NoError(t, err)
		}
	}
	// next gives the sequences of what the projector is given, and acknowledges the first of them.
	next := func(b *Bus, want, acknowledged int) (seqs []uint64) {
		cons, err := b.js.Consumer(ctx, ChatStream, ProjectorConsumer)
		require.NoError(t, err)
		for len(seqs) < want {
			m, err := cons.Next(jetstream.FetchMaxWait(5 * time.Second))
			require.NoError(t, err)
			meta, err := m.Metadata()
			require.NoError(t, err)
			if len(seqs) < acknowledged {
				require.NoError(t, m.DoubleAck(ctx))
			}
			seqs = append(seqs, meta.Sequence.Stream)
		}
		return seqs
	}

	// As an older version left it: the position is in a file.
	srv, b := open()
	streams := Streams(1)
	_, err := b.js.CreateStream(ctx, streams[0])
	require.NoError(t, err)
	for _, c := range Consumers(ChatStream) {
		_, err := b.js.CreateConsumer(ctx, ChatStream, c)
		require.NoError(t, err)
	}
	publish(b, 1, 5)
	require.Equal(t, []uint64{1, 2, 3}, next(b, 3, 2))
	b.Close()
	srv.Close()

	srv, b = open()
	require.NoError(t, b.Ensure(ctx, ChatStream))
	require.NoError(t, b.Ensure(ctx, ChatStream), "again, nothing is to be done")
	cons, err := b.js.Consumer(ctx, ChatStream, ProjectorConsumer)
	require.NoError(t, err)
	require.True(t, cons.CachedInfo().Config.MemoryStorage)
	require.Equal(t, []uint64{3, 4, 5}, next(b, 3, 1))
	b.Close()
	srv.Close()

	srv, b = open()
	require.NoError(t, b.Ensure(ctx, ChatStream))
	require.Equal(t, []uint64{4, 5}, next(b, 2, 2))
	publish(b, 6, 6)
	b.Close()
	srv.Close()

	srv, b = open()
	require.NoError(t, b.Ensure(ctx, ChatStream))
	require.Equal(t, []uint64{6}, next(b, 1, 1))
	b.Close()
	srv.Close()

	require.NoError(t, os.WriteFile(filepath.Join(dir, positionsFile), nil, 0o600))
	srv, b = open()
	require.NoError(t, b.Ensure(ctx, ChatStream))
	require.Equal(t, []uint64{1, 2, 3, 4, 5, 6}, next(b, 6, 0), "without positions the whole log is looked through")
	b.Close()
	srv.Close()
}

// A quiet consumer moves on with the log: the server need not look through what was before when it starts.
func TestQuietConsumersFollowTheLog(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	srv, err := StartServer(ServerOptions{Dir: t.TempDir(), Sync: time.Minute})
	require.NoError(t, err)
	t.Cleanup(srv.Close)
	b, err := Connect(ctx, Options{Server: srv, Service: "brain"})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	require.NoError(t, b.Ensure(ctx, ChatStream))
	seq, err := b.Publish(ctx, ChatStream, NewEvent("butler.chat.step", b.Source(), "butler.chat.7.12.m1.step", []byte("{}")))
	require.NoError(t, err)
	s, err := b.js.Stream(ctx, ChatStream)
	require.NoError(t, err)
	for srv.positions.after(s.CachedInfo(), PartitionConsumer(0)) != seq {
		srv.positions.take()
		require.NoError(t, ctx.Err())
	}
}
