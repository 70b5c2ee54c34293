package store

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
	"github.com/butlerhub/butler/pkg/storage"
)

func TestThreads(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		ada := f.person(t, "ada")
		var agent int64
		require.NoError(t, f.db.Write(ctx, func(tx *storage.Tx) (err error) {
			agent, err = tx.NewPrincipal(storage.AgentKind)
			return err
		}))
		f.clock.Add(time.Second)
		plans, err := f.CreateThread(ctx, ada.ID, NewThread{Title: " Plans\nfor 2027 "})
		require.NoError(t, err)
		require.Equal(t, Thread{ID: plans.ID, OwnerID: ada.ID, PeerID: ButlerID, ChannelKind: ButlerDirect,
			Title: "Plans for 2027", CreatedAt: f.clock.Now(), UpdatedAt: f.clock.Now()}, plans)
		f.clock.Add(time.Second)
		direct, err := f.CreateThread(ctx, ada.ID, NewThread{PeerID: agent})
		require.NoError(t, err)
		require.Equal(t, AgentDirect, direct.ChannelKind)

		got, err := f.Thread(ctx, ada.ID, plans.ID)
		require.NoError(t, err)
		require.Equal(t, plans, got)

		f.clock.Add(time.Second)
		plans, err = f.UpdateThread(ctx, ada.ID, plans.ID,
			ThreadChange{Title: ptr("Budget 100%"), Summary: ptr("Money"), Pinned: ptr(true), Archived: ptr(true)})
		require.NoError(t, err)
		require.True(t, plans.Pinned)
		require.Equal(t, f.clock.Now(), plans.ArchivedAt)
		archived := plans.ArchivedAt
		f.clock.Add(time.Second)
		plans, err = f.UpdateThread(ctx, ada.ID, plans.ID, ThreadChange{Archived: ptr(true)})
		require.NoError(t, err)
		require.Equal(t, archived, plans.ArchivedAt)
		require.Equal(t, "Budget 100%", plans.Title)

		for name, c := range map[string]struct {
			filter ThreadFilter
			want   []int64
		}{
			"all, pinned and latest first": {ThreadFilter{}, []int64{plans.ID, direct.ID, f.thread(t, ada.ID).ID}},
			"peer":                         {ThreadFilter{PeerID: agent}, []int64{direct.ID}},
			"kind":                         {ThreadFilter{ChannelKind: ButlerDirect}, []int64{plans.ID, f.thread(t, ada.ID).ID}},
			"archived":                     {ThreadFilter{Archived: ptr(true)}, []int64{plans.ID}},
			"not archived":                 {ThreadFilter{Archived: ptr(false)}, []int64{direct.ID, f.thread(t, ada.ID).ID}},
			"title":                        {ThreadFilter{Query: "bUDGET 100%"}, []int64{plans.ID}},
			"summary":                      {ThreadFilter{Query: "mon", PeerID: ButlerID}, []int64{plans.ID}},
			"literal":                      {ThreadFilter{Query: "%"}, []int64{plans.ID}},
			"limit":                        {ThreadFilter{Limit: 1}, []int64{plans.ID}},
			"none":                         {ThreadFilter{Query: "nothing"}, nil},
		} {
			threads, err := f.Threads(ctx, ada.ID, c.filter)
			require.NoError(t, err, name)
			var ids []int64
			for _, thread := range threads {
				ids = append(ids, thread.ID)
			}
			require.Equal(t, c.want, ids, name)
		}
		plans, err = f.UpdateThread(ctx, ada.ID, plans.ID, ThreadChange{Archived: ptr(false)})
		require.NoError(t, err)
		require.Zero(t, plans.ArchivedAt)
	})
}

func TestForeignThreadsDoNotExist(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		ada, mallory := f.person(t, "ada"), f.person(t, "mallory")
		thread := f.thread(t, ada.ID)
		require.NoError(t, f.Apply(ctx, []Message{message(1, ada.ID, thread.ID, "secret")}, 1))
		for _, owner := range []int64{mallory.ID, 1, ButlerID, 99, 0} {
			_, err := f.Thread(ctx, owner, thread.ID)
			requireCode(t, fault.NotFound, err)
			_, err = f.UpdateThread(ctx, owner, thread.ID, ThreadChange{Title: ptr("mine")})
			requireCode(t, fault.NotFound, err)
			_, err = f.Messages(ctx, owner, thread.ID, 0, 10)
			requireCode(t, fault.NotFound, err)
			requireCode(t, fault.NotFound, f.DeleteThread(ctx, owner, thread.ID))
			found, err := f.PersonMessages(ctx, owner, 0, 10)
			require.NoError(t, err)
			require.Empty(t, found)
		}
		messages, err := f.Messages(ctx, ada.ID, thread.ID, 0, 10)
		require.NoError(t, err)
		require.Len(t, messages, 1)
	})
}

func TestThreadChecks(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		for name, c := range map[string]struct {
			owner int64
			what  NewThread
			code  fault.Code
		}{
			"long title":        {1, NewThread{Title: strings.Repeat("长", 201)}, fault.Invalid},
			"invalid title":     {1, NewThread{Title: "\xff"}, fault.Invalid},
			"invented kind":     {1, NewThread{ChannelKind: "party"}, fault.Invalid},
			"kind without peer": {1, NewThread{ChannelKind: AgentDirect}, fault.Invalid},
			"nobody":            {1, NewThread{PeerID: 99}, fault.NotFound},
			"oneself":           {1, NewThread{PeerID: 1}, fault.NotFound},
			"no owner":          {99, NewThread{}, fault.NotFound},
			"Butler as owner":   {ButlerID, NewThread{}, fault.NotFound},
		} {
			_, err := f.CreateThread(ctx, c.owner, c.what)
			require.Equal(t, c.code, fault.CodeOf(err), "%s: %v", name, err)
		}
		_, err := f.CreateThread(ctx, 1, NewThread{Title: strings.Repeat("长", 200)})
		require.NoError(t, err)
		_, err = f.UpdateThread(ctx, 1, f.thread(t, 1).ID, ThreadChange{Summary: ptr(strings.Repeat("x", 4001))})
		requireCode(t, fault.Invalid, err)
		_, err = f.Threads(ctx, 1, ThreadFilter{Query: strings.Repeat("x", 201)})
		requireCode(t, fault.Invalid, err)
		_, err = f.DefaultThread(ctx, 99)
		requireCode(t, fault.NotFound, err)
		for _, name := range []string{"", strings.Repeat("x", 201), "a\x00", "\xff"} {
			_, err := f.ThreadByName(ctx, 1, name)
			requireCode(t, fault.Invalid, err)
		}
	})
}

func TestThreadLimit(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		require.NoError(t, f.db.Write(ctx, func(tx *storage.Tx) error {
			// The default thread is the first.
			_, err := tx.Exec(`WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
				INSERT INTO threads (owner_id, peer_id, channel_kind, created_at, updated_at)
				SELECT 1, 2, 'butler_direct', 0, 0 FROM n`, MaxThreads)
			return err
		}))
		_, err := f.CreateThread(ctx, 1, NewThread{})
		requireCode(t, fault.Conflict, err)
		_, err = f.ThreadByName(ctx, 1, "one more")
		requireCode(t, fault.Conflict, err)
		threads, err := f.Threads(ctx, 1, ThreadFilter{})
		require.NoError(t, err)
		require.Len(t, threads, MaxThreads)
		require.NoError(t, f.DeleteThread(ctx, 1, threads[0].ID))
		_, err = f.CreateThread(ctx, 1, NewThread{})
		require.NoError(t, err)
	})
}

func TestNamedAndDefaultThreadsAreMadeOnce(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		require.NoError(t, f.DeleteThread(ctx, 1, f.thread(t, 1).ID))
		var wg sync.WaitGroup
		var mu sync.Mutex
		seen := map[string]map[int64]bool{"default": {}, "a": {}, "A": {}}
		for range 10 {
			for name, ids := range seen {
				wg.Go(func() {
					var thread Thread
					var err error
					if name == "default" {
						thread, err = f.DefaultThread(ctx, 1)
					} else {
						thread, err = f.ThreadByName(ctx, 1, name)
					}
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					ids[thread.ID] = true
					mu.Unlock()
				})
			}
		}
		wg.Wait()
		for name, ids := range seen {
			require.Len(t, ids, 1, name)
		}
		ada := f.person(t, "ada")
		theirs, err := f.ThreadByName(ctx, ada.ID, "a")
		require.NoError(t, err)
		require.False(t, seen["a"][theirs.ID], "names are each person's own")
	})
}

func TestDeletedThreadsStayDeleted(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		thread, err := f.CreateThread(ctx, 1, NewThread{})
		require.NoError(t, err)
		var many []Message
		for i := range uint64(deleteBatch + 10) {
			many = append(many, message(i+1, 1, thread.ID, "forget me"))
		}
		require.NoError(t, f.Apply(ctx, many, uint64(len(many))))
		require.NoError(t, f.DeleteThread(ctx, 1, thread.ID))
		requireCode(t, fault.NotFound, f.DeleteThread(ctx, 1, thread.ID))
		late := message(9999, 1, thread.ID, "an answer that came late")
		require.NoError(t, f.Apply(ctx, append(many, late), 9999))
		found, err := f.PersonMessages(ctx, 1, 0, 10)
		require.NoError(t, err)
		require.Empty(t, found)
		next, err := f.CreateThread(ctx, 1, NewThread{})
		require.NoError(t, err)
		require.Greater(t, next.ID, thread.ID, "its number is not given out again")
	})
}

func TestDeleteWhileMessagesArrive(t *testing.T) {
	each(t, func(t *testing.T, f fixture) {
		ctx := t.Context()
		for round := range uint64(20) {
			thread, err := f.CreateThread(ctx, 1, NewThread{Title: fmt.Sprint(round)})
			require.NoError(t, err)
			var wg sync.WaitGroup
			for w := range uint64(3) {
				wg.Go(func() {
					for i := range uint64(10) {
						id := 1 + round*100 + i*3 + w
						if err := f.Apply(ctx, []Message{message(id, 1, thread.ID, "x")}, id); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Go(func() {
				if err := f.DeleteThread(ctx, 1, thread.ID); err != nil {
					t.Error(err)
				}
			})
			wg.Wait()
			found, err := f.PersonMessages(ctx, 1, 0, 10)
			require.NoError(t, err)
			require.Empty(t, found)
		}
	})
}
