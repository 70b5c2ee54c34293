package approval

import (
	"slices"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// What a policy says of the requester.
const (
	RequesterAlways = "always" // may decide, whatever their role
	RequesterSole   = "sole"   // may decide only when nobody else may
	RequesterNever  = "never"  // may not
)

// MayDecide says whether person may decide a, as its policy says: by role or by name, and the requester by the policy's
// rule for them. people is everybody who can sign in; it decides whether the requester is the only one. Agents and Butler
// never may. It does not look at the request's status.
func MayDecide(a *butlerv1.Approval, person *butlerv1.Actor, people []*butlerv1.Actor) bool {
	p := a.GetPolicy()
	if p.GetAction() != "ask" || person.GetId() == 0 {
		return false
	}
	if person.GetRole() != "ADMIN" && person.GetRole() != "MEMBER" {
		return false
	}
	if person.GetId() != a.GetRequester().GetId() {
		return named(p, person)
	}
	switch p.GetRequester() {
	case RequesterAlways:
		return true
	case RequesterSole:
		return named(p, person) && !slices.ContainsFunc(people, func(other *butlerv1.Actor) bool {
			return other.GetId() != person.GetId() && named(p, other)
		})
	default:
		return false
	}
}

// Deciders gives those of people who may decide a.
func Deciders(a *butlerv1.Approval, people []*butlerv1.Actor) []*butlerv1.Actor {
	var out []*butlerv1.Actor
	for _, p := range people {
		if MayDecide(a, p, people) {
			out = append(out, p)
		}
	}
	return out
}

func named(p *butlerv1.ApprovalPolicy, person *butlerv1.Actor) bool {
	if person.GetRole() != "ADMIN" && person.GetRole() != "MEMBER" {
		return false
	}
	return slices.Contains(p.GetRoles(), person.GetRole()) || slices.Contains(p.GetPeople(), person.GetId())
}
