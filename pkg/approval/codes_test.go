package approval

import (
	"strings"
	"testing"
)

func TestParseDecision(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Decision{
		"approve":                            {Approve: true},
		"  Approve. ":                        {Approve: true},
		"DENY!":                              {},
		"确认":                                 {Approve: true},
		"确认。":                                {Approve: true},
		"取消":                                 {},
		"　确认　":                               {Approve: true},
		"approve K7QF":                       {Approve: true, Code: "K7QF", Certain: true},
		"approve k7qf":                       {Approve: true, Code: "K7QF", Certain: true},
		"Approve `K7QF`":                     {Approve: true, Code: "K7QF", Certain: true},
		"approve: K7QF":                      {Approve: true, Code: "K7QF", Certain: true},
		"approve　k7qf":                       {Approve: true, Code: "K7QF", Certain: true},
		"approve  \t K7QF  ":                 {Approve: true, Code: "K7QF", Certain: true},
		"approve #K7QF":                      {Approve: true, Code: "K7QF", Certain: true},
		"deny K7QF not on a Friday":          {Code: "K7QF", Reason: "not on a Friday", Certain: true},
		"deny K7QF: not on a Friday":         {Code: "K7QF", Reason: "not on a Friday", Certain: true},
		"deny\nK7QF\nit deletes\ntwo things": {Code: "K7QF", Reason: "it deletes\ntwo things", Certain: true},
		"确认 K7QF":                            {Approve: true, Code: "K7QF", Certain: true},
		"确认K7QF":                             {Approve: true, Code: "K7QF", Certain: true},
		"确认　k7qf":                            {Approve: true, Code: "K7QF", Certain: true},
		"确认：【K7QF】":                          {Approve: true, Code: "K7QF", Certain: true},
		"取消 K7QF 现在不合适":                      {Code: "K7QF", Reason: "现在不合适", Certain: true},
		"取消K7QF，太危险了":                        {Code: "K7QF", Reason: "太危险了", Certain: true},
		"拒绝 KMNP":                            {Code: "KMNP", Certain: true},
		"deny that request":                  {Code: "THAT", Reason: "request"},
		"approve name":                       {Approve: true, Code: "NAME"},
		"approve NAME":                       {Approve: true, Code: "NAME", Certain: true},
	} {
		if got, ok := ParseDecision(text); !ok || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, ok, want)
		}
	}
}

func TestOrdinaryTextIsNoDecision(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", " ", "hello", "reject", "同意", "同意。", "拒绝", "approved", "approve the plan", "approval", "deny everything", "denying K7QF", "I approve K7QF",
		"please approve", "approve K7Q", "approve K7QFX", "approve K7QF-2", "approveK7QF", "approve O0I1", "确认一下", "确认收到了吗",
		"取消会议", "取消 明天的会议", "请确认", "不取消", "approve it because it is fine", "deny/K7QF", "approve\xff", "run: approve K7QF",
		"approve " + strings.Repeat("K7QF ", 2000),
	} {
		if got, ok := ParseDecision(text); ok {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

func TestNewCodesAreValid(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		code := NewCode()
		if !ValidCode(code) {
			t.Fatalf("%q is no code", code)
		}
		seen[code] = true
	}
	if len(seen) < 900 {
		t.Errorf("1000 codes by chance are only %d", len(seen))
	}
}

func FuzzParseDecision(f *testing.F) {
	for _, text := range []string{"approve K7QF", "确认k7qf 好", "DENY", "取消"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, ok := ParseDecision(text)
		switch {
		case !ok && d != (Decision{}):
			t.Errorf("%q is none, and says %+v", text, d)
		case ok && d.Code != "" && !ValidCode(d.Code):
			t.Errorf("%q: %q is no code", text, d.Code)
		case ok && d.Code == "" && d.Reason != "":
			t.Errorf("%q has a reason without a code", text)
		}
	})
}
