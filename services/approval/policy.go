package approval

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Actions of a rule.
const (
	actionRun    = "run"
	actionAsk    = "ask"
	actionRefuse = "refuse"
)

// Bounds of a policy.
const (
	maxPolicyBytes = 256 << 10
	maxRules       = 200
	maxQuorum      = 10
)

// Policy is an ordered list of rules; the first whose conditions all hold decides. It is never changed once made.
type Policy struct {
	rules []rule
}

// rule as it is written in YAML; see docs/how-to/approvals.md.
type rule struct {
	Name     string     `yaml:"name"`
	When     conditions `yaml:"when"`
	Then     string     `yaml:"then"`
	Quorum   int32      `yaml:"quorum"`
	Deciders deciders   `yaml:"deciders"`
}

// conditions hold when each that is given holds; a list holds when one of its values does.
type conditions struct {
	Risk      []string `yaml:"risk"`
	Proposer  []string `yaml:"proposer"`
	Role      []string `yaml:"role"`
	Person    []string `yaml:"person"`
	Host      []string `yaml:"host"`
	Channel   []string `yaml:"channel"`
	Kind      []string `yaml:"kind"`
	Untrusted *bool    `yaml:"untrusted"`
	Hardline  *bool    `yaml:"hardline"`
}

type deciders struct {
	Roles     []string `yaml:"roles"`
	People    []int64  `yaml:"people"`
	Requester string   `yaml:"requester"`
}

// consoles are the channels in which what is hardline can be allowed at all: where a person sees the whole card.
var consoles = []string{"websocket", "http"}

// BuiltIn is the policy when no file says otherwise.
func BuiltIn() *Policy {
	return &Policy{rules: []rule{
		{Name: "low-risk", When: conditions{Risk: []string{"low"}}, Then: actionRun},
		{
			Name: "typed-by-the-person", When: conditions{Proposer: []string{approval.ByPerson}},
			Then: actionAsk, Quorum: 1, Deciders: deciders{Requester: approval.RequesterAlways},
		},
		{
			Name: "proposed", Then: actionAsk, Quorum: 1,
			Deciders: deciders{Roles: []string{"ADMIN"}, Requester: approval.RequesterSole},
		},
	}}
}

// ParsePolicy reads a policy from YAML and checks it whole; all that is wrong is told at once. A request that no rule
// covers is decided by the last rule of the built-in policy.
func ParsePolicy(data []byte) (*Policy, error) {
	if len(data) > maxPolicyBytes {
		return nil, fault.New(fault.Invalid, "the policy is larger than %d KiB", maxPolicyBytes>>10)
	}
	var doc struct {
		Version int    `yaml:"version"`
		Rules   []rule `yaml:"rules"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	var problems []string
	err := dec.Decode(&doc)
	if wrong, ok := errors.AsType[*yaml.TypeError](err); ok { // what fits was read all the same
		for _, p := range wrong.Errors {
			problems = append(problems, unknownField.ReplaceAllString(p, "there is no field $1"))
		}
	} else if errors.Is(err, io.EOF) {
		return nil, fault.New(fault.Invalid, "the policy is empty; write version: 1 and rules")
	} else if err != nil {
		return nil, fault.New(fault.Invalid, "the policy cannot be read: %s",
			strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: "))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fault.New(fault.Invalid, "the policy must be one YAML document")
	}
	if doc.Version != 1 {
		problems = append(problems, fmt.Sprintf("version: must be 1, not %d", doc.Version))
	}
	if len(doc.Rules) > maxRules {
		problems = append(problems, fmt.Sprintf("rules: at most %d, not %d", maxRules, len(doc.Rules)))
	}
	names := map[string]bool{}
	for i := range doc.Rules {
		r := &doc.Rules[i]
		where := fmt.Sprintf("rule %d", i+1)
		if r.Name == "" {
			problems = append(problems, where+": needs a name, which the audit tells")
		} else {
			where += " (" + r.Name + ")"
		}
		if names[r.Name] {
			problems = append(problems, where+": another rule has this name")
		}
		names[r.Name] = true
		for _, p := range r.check() {
			problems = append(problems, where+": "+p)
		}
	}
	if len(problems) > 0 {
		return nil, fault.New(fault.Invalid, "the policy is not valid: %s", strings.Join(problems, "; "))
	}
	builtIn := BuiltIn().rules
	return &Policy{rules: append(doc.Rules, builtIn[len(builtIn)-1])}, nil
}

// unknownField is how package yaml says that there is no such field.
var unknownField = regexp.MustCompile(`field (\S+) not found in type \S+`)

// check completes the rule's defaults and says what is wrong with it.
func (r *rule) check() (problems []string) {
	w := r.When
	among := func(what string, values []string, allowed ...string) {
		for _, v := range values {
			if !slices.Contains(allowed, v) {
				problems = append(problems, fmt.Sprintf("%s: %q is none of %s", what, v, strings.Join(allowed, ", ")))
			}
		}
	}
	among("when.risk", w.Risk, "low", "medium", "high", "critical")
	among("when.proposer", w.Proposer, approval.ByPerson, approval.ByModel, approval.ByAgent)
	among("when.role", w.Role, "ADMIN", "MEMBER")
	among("when.kind", w.Kind, approval.KindCommand, approval.KindInput, approval.KindAgent)
	among("then", []string{r.Then}, actionRun, actionAsk, actionRefuse)
	for _, pattern := range w.Host {
		if _, err := path.Match(pattern, "host"); err != nil {
			problems = append(problems, fmt.Sprintf("when.host: %q is not a pattern such as web-*", pattern))
		}
	}
	d := &r.Deciders
	if r.Then != actionAsk {
		if r.Quorum != 0 || len(d.Roles) > 0 || len(d.People) > 0 || d.Requester != "" {
			problems = append(problems, "quorum and deciders belong to then: ask")
		}
	} else {
		if r.Quorum == 0 {
			r.Quorum = 1
		}
		if d.Requester == "" {
			d.Requester = approval.RequesterNever
		}
		if r.Quorum < 1 || r.Quorum > maxQuorum {
			problems = append(problems, fmt.Sprintf("quorum: must be 1 to %d", maxQuorum))
		}
		among("deciders.roles", d.Roles, "ADMIN", "MEMBER")
		among("deciders.requester", []string{d.Requester}, approval.RequesterAlways, approval.RequesterSole, approval.RequesterNever)
		if len(d.Roles) == 0 && len(d.People) == 0 && d.Requester != approval.RequesterAlways {
			problems = append(problems, "deciders: nobody could decide; name roles, people, or requester: always")
		}
		if len(d.Roles) == 0 && len(d.People) == 0 && r.Quorum > 1 {
			problems = append(problems, "quorum: the requester alone cannot be several people")
		}
	}
	if w.Hardline != nil && *w.Hardline && r.Then != actionRefuse {
		if r.Then == actionRun {
			problems = append(problems, "then: what is hardline is asked for or refused, never run by itself")
		}
		if len(w.Channel) == 0 || slices.ContainsFunc(w.Channel, func(c string) bool { return !slices.Contains(consoles, c) }) {
			problems = append(problems, "when.channel: what is hardline can be allowed on the console only; name some of "+
				strings.Join(consoles, ", "))
		}
	}
	return problems
}

// verdict is what the policy says of a request, whose requester, proposer, channel, effect, risk and why are filled in.
func (p *Policy) verdict(a *butlerv1.Approval) *butlerv1.ApprovalPolicy {
	risk := a.GetRisk()
	if !risk.GetHardline() && (risk.GetVerdict() == actionRefuse || risk.GetVerdict() == "") {
		// It cannot be read as bash would, or was not judged: no rule can say that it is what people think it is.
		return &butlerv1.ApprovalPolicy{Rule: "not-readable", Action: actionRefuse}
	}
	for _, r := range p.rules {
		if risk.GetHardline() && (r.When.Hardline == nil || !*r.When.Hardline) {
			continue // only a rule that says so is about what is hardline
		}
		if !r.When.hold(a) {
			continue
		}
		return &butlerv1.ApprovalPolicy{
			Rule: r.Name, Action: r.Then, Quorum: r.Quorum, Roles: r.Deciders.Roles, People: r.Deciders.People,
			Requester: r.Deciders.Requester,
		}
	}
	return &butlerv1.ApprovalPolicy{Rule: "hardline", Action: actionRefuse}
}

func (w conditions) hold(a *butlerv1.Approval) bool {
	one := func(values []string, is string) bool { return len(values) == 0 || slices.Contains(values, is) }
	who := a.GetRequester()
	return one(w.Risk, a.GetRisk().GetLevel()) &&
		one(w.Proposer, a.GetProposer()) &&
		one(w.Role, who.GetRole()) &&
		one(w.Channel, a.GetChannel()) &&
		one(w.Kind, a.GetEffect().GetKind()) &&
		(len(w.Person) == 0 || slices.Contains(w.Person, who.GetName()) || slices.Contains(w.Person, strconv.FormatInt(who.GetId(), 10))) &&
		(len(w.Host) == 0 || slices.ContainsFunc(w.Host, func(pattern string) bool {
			ok, _ := path.Match(pattern, a.GetEffect().GetHost())
			return ok
		})) &&
		(w.Untrusted == nil || *w.Untrusted == (len(a.GetWhy().GetUntrusted()) > 0)) &&
		(w.Hardline == nil || *w.Hardline == a.GetRisk().GetHardline())
}
