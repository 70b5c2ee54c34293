package approval

import (
	"slices"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// What a policy says of the requester as a decider.
const (
	RequesterAlways = "always"
	RequesterSole   = "sole" // only when nobody else could decide
	RequesterNever  = "never"
)

// MayDecide says whether the policy of a makes its decision person's to take. people is everybody who can sign in now:
// it tells whether a requester is the only one who could. The role is that of person, as the caller knows it now.
//
// It does not look at whether the request is still pending, nor at whether the person has said their word: see Said.
// Agents and Butler never decide, and whatever the policy does not say is no.
func MayDecide(a *butlerv1.Approval, person *butlerv1.Actor, people []*butlerv1.Actor) bool {
	p := a.GetPolicy()
	if p.GetAction() != "ask" || !human(person) {
		return false
	}
	if person.GetId() != a.GetRequester().GetId() {
		return listed(p, person)
	}
	switch p.GetRequester() {
	case RequesterAlways:
		return true
	case RequesterSole:
		return listed(p, person) && slices.ContainsFunc(people, func(o *butlerv1.Actor) bool { return o.GetId() == person.GetId() }) &&
			!slices.ContainsFunc(people, func(o *butlerv1.Actor) bool {
				return o.GetId() != person.GetId() && human(o) && listed(p, o)
			})
	}
	return false
}

// Deciders gives those of people who may decide a, in the order of people.
func Deciders(a *butlerv1.Approval, people []*butlerv1.Actor) []*butlerv1.Actor {
	var out []*butlerv1.Actor
	for _, person := range people {
		if MayDecide(a, person, people) {
			out = append(out, person)
		}
	}
	return out
}

// Said gives what a person decided about the effect of a as it is now; words about an effect that was edited since do
// not count. ok is false when they said nothing.
func Said(a *butlerv1.Approval, person int64) (approved, ok bool) {
	for _, d := range slices.Backward(a.GetDecisions()) {
		if d.GetBy().GetId() == person && d.GetDigest() == a.GetDigest() {
			return d.GetApproved(), true
		}
	}
	return false, false
}

// Agreed gives how many distinct people approved the effect of a as it is now.
func Agreed(a *butlerv1.Approval) int {
	said := map[int64]bool{}
	for _, d := range a.GetDecisions() {
		if d.GetApproved() && d.GetBy().GetId() > 0 && d.GetDigest() == a.GetDigest() {
			said[d.GetBy().GetId()] = true
		}
	}
	return len(said)
}

func human(person *butlerv1.Actor) bool {
	return person.GetId() > 0 && (person.GetRole() == "ADMIN" || person.GetRole() == "MEMBER")
}

func listed(p *butlerv1.ApprovalPolicy, person *butlerv1.Actor) bool {
	return slices.Contains(p.GetRoles(), person.GetRole()) || slices.Contains(p.GetPeople(), person.GetId())
}
