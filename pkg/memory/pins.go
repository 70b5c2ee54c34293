package memory

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Bounds of what is pinned in one conversation: all of it stands in every prompt.
const (
	MaxPins    = 50
	MaxPin     = 1000 // characters of one fact
	MaxAllPins = 8000 // characters of all
)

// Remember adds a fact under the id of the turn that pins it, unless that turn has done so. The given pins are not changed.
// Errors are fault.Invalid and fault.TooLarge, with sentences for people.
func Remember(pins []*butlerv1.Pin, id, text string, at time.Time) ([]*butlerv1.Pin, error) {
	text = strings.TrimSpace(strings.ToValidUTF8(text, "\uFFFD"))
	if slices.ContainsFunc(pins, func(p *butlerv1.Pin) bool { return p.GetId() == id || p.GetText() == text }) {
		return pins, nil
	}
	all := utf8.RuneCountInString(text)
	switch {
	case text == "":
		return nil, fault.New(fault.Invalid, "there is nothing to remember: write /remember and the fact")
	case all > MaxPin:
		return nil, fault.New(fault.TooLarge, "the fact has %d characters; at most %d can be pinned", all, MaxPin)
	case len(pins) >= MaxPins:
		return nil, fault.New(fault.TooLarge, "%d facts are pinned already; /forget one first", len(pins))
	}
	for _, p := range pins {
		all += utf8.RuneCountInString(p.GetText())
	}
	if all > MaxAllPins {
		return nil, fault.New(fault.TooLarge, "the pinned facts would have %d characters; at most %d fit into every prompt: /forget one first",
			all, MaxAllPins)
	}
	return append(slices.Clone(pins), &butlerv1.Pin{Id: id, Text: text, At: timestamppb.New(at)}), nil
}

// Forget takes a fact away that is named by its number, from 1, or by its words: those of one fact alone. It gives the fact.
// Errors are fault.NotFound and fault.Invalid, with sentences for people. The given pins are not changed.
func Forget(pins []*butlerv1.Pin, which string) (rest []*butlerv1.Pin, gone *butlerv1.Pin, err error) {
	which = strings.TrimSpace(which)
	if len(pins) == 0 {
		return nil, nil, fault.New(fault.NotFound, "nothing is pinned in this conversation")
	}
	if which == "" {
		return nil, nil, fault.New(fault.Invalid, "say which fact: /forget and its number or words of it")
	}
	i := slices.IndexFunc(pins, func(p *butlerv1.Pin) bool { return p.GetText() == which })
	if n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(which, "#"), ".")); i < 0 && err == nil && n >= 1 && n <= len(pins) {
		i = n - 1
	}
	if i < 0 {
		for j, p := range pins {
			if !strings.Contains(strings.ToLower(p.GetText()), strings.ToLower(which)) {
				continue
			}
			if i >= 0 {
				return nil, nil, fault.New(fault.Invalid, "%q fits several facts (%d and %d): give the number", which, i+1, j+1)
			}
			i = j
		}
	}
	if i < 0 {
		return nil, nil, fault.New(fault.NotFound, "no pinned fact is %q", which)
	}
	return slices.Delete(slices.Clone(pins), i, i+1), pins[i], nil
}
