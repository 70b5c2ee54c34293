package approval

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/butlerhub/butler/pkg/approval"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

var cast = map[string]*butlerv1.Actor{
	"alice": {Id: 1, Name: "alice", Role: "ADMIN"},
	"bob":   {Id: 3, Name: "bob", Role: "MEMBER"},
	"carl":  {Id: 4, Name: "carl", Role: "MEMBER"},
	"amy":   {Id: 5, Name: "amy", Role: "ADMIN"},
	"robot": {Id: 9, Name: "robot", Role: "AGENT"},
}

func actors(names ...string) []*butlerv1.Actor {
	if len(names) == 0 {
		names = []string{"alice", "amy", "bob", "carl", "robot"}
	}
	var out []*butlerv1.Actor
	for _, n := range names {
		out = append(out, cast[n])
	}
	return out
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/policy-cases.yaml")
	require.NoError(t, err)
	var tables []struct {
		Name   string
		Policy string
		Cases  []struct {
			Request struct {
				Risk, Proposer, Requester, Host, Channel, Kind string
				Verdict                                        *string
				Hardline, Untrusted                            bool
			}
			People   []string
			Action   string
			Rule     string
			Quorum   int32
			Deciders []string
		}
	}
	require.NoError(t, yaml.Unmarshal(data, &tables))
	for _, table := range tables {
		policy := BuiltIn()
		if table.Policy != "" {
			policy, err = ParsePolicy([]byte(table.Policy))
			require.NoError(t, err, table.Name)
		}
		for _, c := range table.Cases {
			r := c.Request
			if r.Requester == "" {
				r.Requester = "bob"
			}
			verdict := map[string]string{"low": "run", "medium": "ask", "high": "ask", "critical": "ask"}[r.Risk]
			if r.Verdict != nil {
				verdict = *r.Verdict
			}
			if r.Kind == "" {
				r.Kind = approval.KindCommand
			}
			a := &butlerv1.Approval{
				Requester: cast[r.Requester], Proposer: r.Proposer, Channel: r.Channel,
				Effect: &butlerv1.Effect{Kind: r.Kind, Host: r.Host},
				Risk:   trimRisk(&butlerv1.Risk{Level: r.Risk, Verdict: verdict, Hardline: r.Hardline}),
				Why:    &butlerv1.ApprovalReason{},
			}
			if r.Untrusted {
				a.Why.Untrusted = []*butlerv1.UntrustedSource{{Name: "web"}}
			}
			a.Policy = policy.verdict(a)
			require.Equal(t, c.Action, a.Policy.GetAction(), "%s: %+v", table.Name, c)
			require.Equal(t, c.Rule, a.Policy.GetRule(), "%s: %+v", table.Name, c)
			var names []string
			for _, p := range approval.Deciders(a, actors(c.People...)) {
				names = append(names, p.GetName())
			}
			require.Equal(t, c.Deciders, names, "%s: %+v", table.Name, c)
			if c.Action == "ask" {
				require.Equal(t, max(1, c.Quorum), a.Policy.GetQuorum(), "%s: %+v", table.Name, c)
			}
		}
	}
}

func TestBadPoliciesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	for yaml, says := range map[string]string{
		"":                        "empty",
		"version: 2\nrules: []":   "version: must be 1",
		"version: 1\nrule: []":    "there is no field rule",
		"version: 1\nrules: [{}]": "needs a name",
		"version: 1\nrules: [{name: a, then: maybe}]":                                                                  `"maybe" is none of run, ask, refuse`,
		"version: 1\nrules: [{name: a, then: run, quorum: 2}]":                                                         "belong to then: ask",
		"version: 1\nrules: [{name: a, then: ask}]":                                                                    "nobody could decide",
		"version: 1\nrules: [{name: a, then: ask, quorum: 11, deciders: {roles: [ADMIN]}}]":                            "quorum: must be 1 to 10",
		"version: 1\nrules: [{name: a, then: ask, deciders: {roles: [AGENT]}}]":                                        `"AGENT" is none of`,
		"version: 1\nrules: [{name: a, then: ask, quorum: 2, deciders: {requester: always}}]":                          "cannot be several people",
		"version: 1\nrules: [{name: a, then: run, when: {risk: [huge]}}]":                                              `"huge" is none of`,
		"version: 1\nrules: [{name: a, then: run, when: {host: ['[']}}]":                                               "not a pattern",
		"version: 1\nrules: [{name: a, then: run}, {name: a, then: run}]":                                              "another rule has this name",
		"version: 1\nrules: [{name: a, then: run, when: {hardline: true, channel: [websocket]}}]":                      "never run by itself",
		"version: 1\nrules: [{name: a, then: ask, when: {hardline: true}, deciders: {roles: [ADMIN]}}]":                "on the console only",
		"version: 1\nrules: [{name: a, then: ask, when: {hardline: true, channel: [qq]}, deciders: {roles: [ADMIN]}}]": "on the console only",
		"version: 1\nrules: []\n---\nversion: 1":                                                                       "one YAML document",
		"version: 1\nrules: {":                                                                                         "cannot be read",
	} {
		_, err := ParsePolicy([]byte(yaml))
		require.ErrorContains(t, err, says, "%s", yaml)
	}
	_, err := ParsePolicy([]byte("version: 1\nrules:\n  - name: a\n    when:\n      hots: [x]\n      risk: [lowish]\n    then: runn\n"))
	require.EqualError(t, err, `the policy is not valid: line 5: there is no field hots; rule 1 (a): when.risk: "lowish" is none of `+
		`low, medium, high, critical; rule 1 (a): then: "runn" is none of run, ask, refuse`, "all of it, once")
}

func FuzzParsePolicy(f *testing.F) {
	f.Add([]byte("version: 1\nrules: [{name: a, then: run}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ParsePolicy(data)
		if err == nil {
			p.verdict(&butlerv1.Approval{Risk: &butlerv1.Risk{Level: "high", Verdict: "ask"}})
		}
	})
}
