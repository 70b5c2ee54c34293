package tmux

// backlog holds output for a reader that may be slow: the first limit bytes, and of what comes after them the last keep.
type backlog struct {
	limit, keep int
	head, tail  []byte
	before      int64 // skipped before head
	skipped     int64 // skipped between head and tail
}

func (b *backlog) add(p []byte) {
	if len(b.tail) == 0 && b.skipped == 0 && len(b.head)+len(p) <= b.limit {
		b.head = append(b.head, p...)
		return
	}
	b.tail = append(b.tail, p...)
	if extra := len(b.tail) - b.keep; extra > b.keep {
		b.skipped += int64(extra)
		b.tail = append(b.tail[:0], b.tail[extra:]...)
	}
}

// skip notes n bytes that were lost before they came here.
func (b *backlog) skip(n int64) {
	if len(b.head) == 0 && len(b.tail) == 0 && b.skipped == 0 {
		b.before += n
		return
	}
	b.skipped += int64(len(b.tail)) + n
	b.tail = b.tail[:0]
}

func (b *backlog) empty() bool {
	return len(b.head) == 0 && len(b.tail) == 0 && b.skipped == 0 && b.before == 0
}

// lost gives how many bytes take would report as skipped.
func (b *backlog) lost() int64 { return b.before + b.skipped }

// take gives all of it, and how many bytes were skipped; the backlog is empty then.
func (b *backlog) take() (pieces []Output, lost int64) {
	if len(b.tail) > b.keep {
		extra := len(b.tail) - b.keep
		b.skipped += int64(extra)
		b.tail = b.tail[extra:]
	}
	lost = b.before + b.skipped
	if len(b.head) > 0 || b.before > 0 {
		pieces = append(pieces, Output{Data: b.head, Skipped: b.before})
	}
	if len(b.tail) > 0 || b.skipped > 0 {
		pieces = append(pieces, Output{Data: b.tail, Skipped: b.skipped})
	}
	*b = backlog{limit: b.limit, keep: b.keep}
	return pieces, lost
}
