package redact

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// streamed redacts pieces as a stream does; flush says before which pieces it is flushed.
func streamed(t require.TestingT, r *Redactor, pieces []string, flush func(int) bool) string {
	var out strings.Builder
	s := r.Stream(&out)
	for i, p := range pieces {
		if flush != nil && flush(i) {
			require.NoError(t, s.Flush())
		}
		if n, err := s.Write([]byte(p)); err != nil || n != len(p) {
			require.FailNow(t, "not written", "%d of %d: %v", n, len(p), err)
		}
	}
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	if len(pieces) > 2 {
		_, want := r.String(strings.Join(pieces, ""))
		require.Equal(t, want, s.Found())
	}
	return out.String()
}

func everything(t testing.TB) []entry {
	return append(corpus(t, "secrets.tsv"), corpus(t, "own-secrets.tsv")...)
}

// coloured puts a change of colour after every nth character.
func coloured(text string, n int) string {
	var out strings.Builder
	count := 0
	inEscape := false
	for _, r := range text {
		if r == esc {
			inEscape = true
		}
		if !inEscape {
			if count++; count%n == 0 {
				fmt.Fprintf(&out, "\x1b[1;3%dm", count%8)
			}
		}
		if inEscape && r != esc && r != '[' && r >= 0x40 {
			inEscape = false
		}
		out.WriteRune(r)
	}
	return out.String()
}

// Every text of the corpus, among lines, coloured or not, cut in two at every byte and in many at random, gives the same
// as in one piece, and a secret that is found in one piece leaks in none.
func TestStreamIsTheWhole(t *testing.T) {
	t.Parallel()
	for _, e := range everything(t) {
		for n, text := range []string{e.text, "$ cat x\r\n" + e.text + "\r\n$ ls\r\na b c\r\n", coloured(e.text, 3)} {
			whole, found := String(text)
			for i := range len(text) {
				if n > 0 && i%(7*slower) > 0 || i%slower > 0 {
					continue
				}
				if got := streamed(t, &Redactor{}, []string{text[:i], text[i:]}, nil); got != whole {
					require.Equal(t, whole, got, "%q cut at %d", text, i)
				}
			}
			one := strings.Split(text, "")
			require.Equal(t, whole, streamed(t, &Redactor{}, one, nil))
			rnd := rand.New(rand.NewPCG(1, uint64(len(text))))
			for range 4 {
				require.Equal(t, whole, streamed(t, &Redactor{}, split(rnd.IntN, text), nil))
			}
			if e.secret && len(e.leaks(whole)) == 0 {
				require.NotEmpty(t, found)
			}
		}
		plain, _ := String(e.text)
		for _, n := range []int{1, 2, 3, 5} {
			out, _ := String(coloured(e.text, n))
			require.Equal(t, visible(plain), visible(out), "colours change nothing: %q", e.text)
			if e.secret && len(e.leaks(plain)) == 0 {
				require.Empty(t, e.leaks(out), "%q", e.text)
			}
			if !e.secret && plain == e.text {
				require.Equal(t, coloured(e.text, n), out, "colours of harmless text stay")
			}
		}
	}
}

func split(intN func(int) int, text string) (pieces []string) {
	for len(text) > 0 {
		n := 1 + intN(min(len(text), 9))
		pieces = append(pieces, text[:n])
		text = text[n:]
	}
	return pieces
}

// Flushing at any time leaks nothing that the whole does not.
func TestFlushLeaksNothing(t *testing.T) {
	t.Parallel()
	for _, e := range everything(t) {
		whole, _ := String(e.text)
		if !e.secret {
			if whole == e.text {
				require.Equal(t, whole, streamed(t, &Redactor{}, strings.Split(e.text, ""), func(int) bool { return true }))
			}
			continue
		}
		if len(e.leaks(whole)) > 0 {
			continue
		}
		text := coloured(e.text, 4)
		for i := 0; i < len(text); i += slower {
			got := streamed(t, &Redactor{}, []string{text[:i], text[i:]}, func(int) bool { return true })
			require.Empty(t, e.leaks(got), "%q flushed at %d: %q", text, i, got)
		}
		got := streamed(t, &Redactor{}, strings.Split(e.text, ""), func(int) bool { return true })
		require.Empty(t, e.leaks(got), "%q flushed at every byte: %q", e.text, got)
	}
}

func TestFlushShowsPrompts(t *testing.T) {
	t.Parallel()
	for _, prompt := range []string{"ann@host:~$ ", ">>> ", "[sudo] password for ann: ", "Continue? (y/n)", "login:", "密码：",
		"\x1b[32mann\x1b[0m$ ", "one two three"} {
		var out strings.Builder
		s := (&Redactor{}).Stream(&out)
		_, err := s.Write([]byte("a line\r\n" + prompt))
		require.NoError(t, err)
		require.Equal(t, "a line\r\n", out.String())
		require.NoError(t, s.Flush())
		require.Equal(t, "a line\r\n"+strings.TrimSuffix(prompt, " three")+strings.Repeat(" three", strings.Count(prompt, " three")), out.String())
		_, err = s.Write([]byte("Tr0ub4dor3xyz\r\nnext\r\n"))
		require.NoError(t, err)
		require.NoError(t, s.Close())
	}
	var out strings.Builder
	s := (&Redactor{}).Stream(&out)
	for _, p := range []string{"[sudo] password for ann: ", "Tr0ub", "4dor3x", "\r\n", "ok\r\n"} {
		_, err := s.Write([]byte(p))
		require.NoError(t, err)
		require.NoError(t, s.Flush())
	}
	require.NoError(t, s.Close())
	require.Equal(t, "[sudo] password for ann: [REDACTED:password]\r\nok\r\n", out.String())
}

// Whatever is around them, known values do not pass.
func TestKnownValuesProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.StringMatching(`[A-Za-z0-9!@#%&*() ]{8,40}`).Draw(t, "value")
		if !Knowable(value) {
			t.Skip("a plain word")
		}
		r := &Redactor{}
		r.Add("env", value)
		before := rapid.StringMatching(`[a-z =:"/\n]{0,30}`).Draw(t, "before")
		after := rapid.StringMatching(`[a-z =:"/\n]{0,30}`).Draw(t, "after")
		long := strings.Repeat(rapid.SampledFrom([]string{"x", "ab ", "line\n", "=", "é"}).Draw(t, "fill"), rapid.IntRange(0, 17000).Draw(t, "n"))
		text := long + before + value + after
		pieces := split(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "cut") }, text[len(long):])
		pieces = append([]string{long}, pieces...)
		whole, _ := r.String(text)
		require.NotContains(t, whole, value)
		require.Equal(t, whole, streamed(t, r, pieces, nil))
		flushed := streamed(t, r, pieces, func(i int) bool { return i%2 == 1 })
		require.NotContains(t, flushed, value)
	})
}

func TestLongLines(t *testing.T) {
	t.Parallel()
	secret := "gh" + "p_" + strings.Repeat("aB3dE6gH9", 4)
	for _, around := range []string{"x", "word ", "a,", "{\"k\":1},", "é", "=", "/", "\x1b[31mred\x1b[0m "} {
		for _, at := range []int{0, maxLine - 60, maxLine - 40, maxLine - 20, maxLine - 1, maxLine, 2*maxLine - 30, 100_000} {
			fill := strings.Repeat(around, at/len(around)+1)[:at/len(around)*len(around)]
			for _, text := range []string{fill + " " + secret + " " + fill, fill + `"password":"` + secret + `",` + fill} {
				whole, found := String(text)
				require.NotContains(t, whole, secret[8:], "%q at %d", around, at)
				require.Len(t, found, 1)
				for _, size := range []int{4096, 70_000}[slower/10:] {
					var pieces []string
					for rest := text; len(rest) > 0; {
						n := min(size, len(rest))
						pieces = append(pieces, rest[:n])
						rest = rest[n:]
					}
					require.Equal(t, whole, streamed(t, &Redactor{}, pieces, nil))
				}
			}
		}
	}
	// A value longer than anything that is held.
	for _, form := range []string{`{"password":"%s","a":"kept"}`, "TOKEN=%s kept", "-----BEGIN PRIVATE KEY-----\\n%s\" kept"} {
		long := strings.Repeat("aB3dE6gH9", 20_000)
		out, _ := String(fmt.Sprintf(form, long))
		require.NotContains(t, out, "aB3dE6gH9")
		require.Contains(t, out, "kept")
	}
}

// Texts that are made to be read again and again, over long lines too, come out as from one piece.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	text := hostile(150_000)
	whole, _ := String(text)
	for _, size := range []int{511, 4096, 100_000} {
		var pieces []string
		for rest := text; len(rest) > 0; {
			n := min(size, len(rest))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		require.Equal(t, whole, streamed(t, &Redactor{}, pieces, nil))
	}
	_ = streamed(t, &Redactor{}, split(rand.New(rand.NewPCG(1, 2)).IntN, text[:60_000]), func(i int) bool { return i%50 == 0 })
}

// What is held back does not grow with the text.
func TestHeldBackIsBounded(t *testing.T) {
	t.Parallel()
	for _, unit := range []string{"x", "\x1b[1m", "\x1b]0;t", "aB3+/=\n", "password=", "eyJ", "\r", "é", "-----BEGIN PRIVATE KEY-----\n", "\x1bP"} {
		var out bytes.Buffer
		s := (&Redactor{}).Stream(&out)
		chunk := []byte(strings.Repeat(unit, 1000/len(unit)))
		for range max(100, 500/slower) {
			_, err := s.Write(chunk)
			require.NoError(t, err)
			require.Less(t, len(s.strip.plain), 4*maxLine, "%q", unit)
			require.Less(t, len(s.strip.escapes), 4*maxLine, "%q", unit)
		}
		require.NoError(t, s.Close())
	}
}

func TestKnownValues(t *testing.T) {
	t.Parallel()
	r := &Redactor{}
	value := `p@ss w0rd/"x"`
	remove := r.Add("env", value, "short", "password")
	again := r.Add("env", value)
	for text, want := range map[string]string{
		"is " + value + "!":            "is [REDACTED:env]!",
		"json p@ss w0rd/\\\"x\\\" end": "json [REDACTED:env] end",
		"q=p%40ss+w0rd%2F%22x%22&a=b":  "q=[REDACTED:env]&a=b",
		"b64 cEBzcyB3MHJkLyJ4Ig==":     "b64 [REDACTED:env]==",
		"short password":               "short password",
		"p@ss w0r\r\nd/\"x\"":          "[REDACTED:env]",
	} {
		got, _ := r.String(text)
		require.Contains(t, []string{want, strings.Replace(want, "env]==", "env]g==", 1), strings.Replace(want, "env]==", "env]Ig==", 1)}, got)
	}
	remove()
	remove()
	got, found := r.String(value)
	require.Equal(t, "[REDACTED:env]", got)
	require.Equal(t, []Found{{"env", 1}}, found)
	again()
	got, _ = r.String(value)
	require.Equal(t, value, got)
	require.Nil(t, r.values.set.Load())
}

func TestKnownValuesChangeWhileInUse(t *testing.T) {
	t.Parallel()
	r := &Redactor{}
	r.Add("fixed", "a fixed value 1")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				v := fmt.Sprintf("value-%d-%d-of-many", i, j)
				remove := r.Add("env", v)
				got, _ := r.String("x " + v + " a fixed value 1 y")
				if got != "x [REDACTED:env] [REDACTED:fixed] y" {
					t.Errorf("%q", got)
				}
				remove()
			}
		})
	}
	wg.Wait()
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"hunter2hunter2", "0123456789abcdef"}, Environment([]string{"PATH=/usr/bin:/bin", "DB_PASSWORD=hunter2hunter2",
		"API_TOKEN=0123456789abcdef", "PASSWORD_FILE=/run/secrets/password", "SHORT_SECRET=x", "PWD=/home/ann/work", "SECRET_DIR=somewhere1", "broken"}))
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestStreamPassesErrorsOn(t *testing.T) {
	t.Parallel()
	s := (&Redactor{}).Stream(failing{})
	_, err := s.Write([]byte("a\n"))
	require.ErrorContains(t, err, "gone")
	_, err = s.Write([]byte("a\n"))
	require.ErrorContains(t, err, "gone")
	require.ErrorContains(t, s.Flush(), "gone")
	require.ErrorContains(t, s.Close(), "gone")
}

func FuzzStream(f *testing.F) {
	for _, e := range everything(f) {
		f.Add(e.text, uint64(len(e.text)))
	}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		r := &Redactor{}
		r.Add("known", "hunter2 and more")
		whole, _ := r.String(text)
		rnd := rand.New(rand.NewPCG(seed, seed))
		pieces := split(rnd.IntN, text)
		if got := streamed(t, r, pieces, nil); got != whole {
			t.Fatalf("%q\nin pieces %q\nwhole     %q", text, got, whole)
		}
		streamed(t, r, pieces, func(int) bool { return rnd.IntN(3) == 0 })
	})
}
