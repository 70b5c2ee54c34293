package tmux

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watcher wakes sessions when their output file grows: one inotify descriptor for all of them. Where there is none to
// be had, it wakes all of them every few milliseconds.
type watcher struct {
	f    *os.File
	fd   int
	stop chan struct{}
	wg   sync.WaitGroup

	mu  sync.Mutex
	by  map[int]func(closed bool)
	gen int // keys without inotify
}

const pollEvery = 5 * time.Millisecond

func newWatcher(poll bool) (w *watcher, polling bool) {
	w = &watcher{by: map[int]func(bool){}, stop: make(chan struct{})}
	if !poll {
		if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err == nil {
			w.f, w.fd = os.NewFile(uintptr(fd), "inotify"), fd
			w.wg.Go(w.read)
			return w, false
		}
	}
	w.wg.Go(func() {
		t := time.NewTicker(pollEvery)
		defer t.Stop()
		for {
			select {
			case <-w.stop:
				return
			case <-t.C:
				w.wakeAll()
			}
		}
	})
	return w, true
}

func (w *watcher) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, wake := range w.by {
		wake(false)
	}
}

func (w *watcher) read() {
	buf := make([]byte, 16<<10)
	for {
		n, err := w.f.Read(buf)
		if err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		for p := buf[:n]; len(p) >= unix.SizeofInotifyEvent; {
			wd := int(int32(binary.NativeEndian.Uint32(p)))
			mask := binary.NativeEndian.Uint32(p[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(p[12:]))
			if mask&unix.IN_Q_OVERFLOW != 0 {
				w.wakeAll()
			} else {
				w.mu.Lock()
				if wake := w.by[wd]; wake != nil {
					wake(mask&unix.IN_CLOSE_WRITE != 0)
				}
				w.mu.Unlock()
			}
			p = p[min(size, len(p)):]
		}
	}
}

// add calls wake, which must not block, when the file was written to or closed by a writer. The result ends it.
func (w *watcher) add(path string, wake func(closed bool)) (remove func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var wd int
	if w.f == nil {
		w.gen++
		wd = w.gen
	} else if wd, err = unix.InotifyAddWatch(w.fd, path, unix.IN_MODIFY|unix.IN_CLOSE_WRITE); err != nil {
		return nil, err
	}
	w.by[wd] = wake
	return sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.by, wd)
		if w.f != nil {
			_, _ = unix.InotifyRmWatch(w.fd, uint32(wd))
		}
	}), nil
}

func (w *watcher) close() {
	close(w.stop)
	if w.f != nil {
		_ = w.f.Close()
	}
	w.wg.Wait()
}
