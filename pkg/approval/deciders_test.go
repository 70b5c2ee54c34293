package approval

import (
	"testing"

	"github.com/stretchr/testify/assert"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

func TestWhoMayDecide(t *testing.T) {
	t.Parallel()
	ada := &butlerv1.Actor{Id: 1, Name: "ada", Role: "ADMIN"}
	bob := &butlerv1.Actor{Id: 3, Name: "bob", Role: "MEMBER"}
	eve := &butlerv1.Actor{Id: 4, Name: "eve", Role: "ADMIN"}
	butler := &butlerv1.Actor{Id: 2, Name: "Butler", Role: "BUTLER"}
	agent := &butlerv1.Actor{Id: 9, Name: "cleaner", Role: "AGENT"}
	nobody := &butlerv1.Actor{}
	admins := []string{"ADMIN"}
	for _, c := range []struct {
		name      string
		policy    *butlerv1.ApprovalPolicy
		requester *butlerv1.Actor
		people    []*butlerv1.Actor
		may       []*butlerv1.Actor
		mayNot    []*butlerv1.Actor
	}{
		{"what a model proposed to a member", &butlerv1.ApprovalPolicy{Action: "ask", Roles: admins, Requester: "sole"}, bob,
			[]*butlerv1.Actor{ada, bob, eve}, []*butlerv1.Actor{ada, eve}, []*butlerv1.Actor{bob, butler, agent, nobody}},
		{"an admin's own, with another admin", &butlerv1.ApprovalPolicy{Action: "ask", Roles: admins, Requester: "sole"}, ada,
			[]*butlerv1.Actor{ada, bob, eve}, []*butlerv1.Actor{eve}, []*butlerv1.Actor{ada, bob}},
		{"an admin's own, as the only one", &butlerv1.ApprovalPolicy{Action: "ask", Roles: admins, Requester: "sole"}, ada,
			[]*butlerv1.Actor{ada, bob}, []*butlerv1.Actor{ada}, []*butlerv1.Actor{bob}},
		{"who is there is not known", &butlerv1.ApprovalPolicy{Action: "ask", Roles: admins, Requester: "sole"}, ada,
			nil, []*butlerv1.Actor{eve}, []*butlerv1.Actor{ada}},
		{"a person named beside the roles", &butlerv1.ApprovalPolicy{Action: "ask", Roles: admins, People: []int64{3}, Requester: "sole"}, ada,
			[]*butlerv1.Actor{ada, bob}, []*butlerv1.Actor{bob}, []*butlerv1.Actor{ada}},
		{"typed by the requester", &butlerv1.ApprovalPolicy{Action: "ask", Requester: "always"}, bob,
			[]*butlerv1.Actor{ada, bob}, []*butlerv1.Actor{bob}, []*butlerv1.Actor{ada, eve}},
		{"never the requester", &butlerv1.ApprovalPolicy{Action: "ask", Roles: []string{"ADMIN", "MEMBER"}, Requester: "never"}, ada,
			[]*butlerv1.Actor{ada, bob}, []*butlerv1.Actor{bob}, []*butlerv1.Actor{ada}},
		{"a rule that says nothing of the requester", &butlerv1.ApprovalPolicy{Action: "ask", Roles: admins}, ada,
			[]*butlerv1.Actor{ada}, nil, []*butlerv1.Actor{ada}},
		{"an agent that a rule names", &butlerv1.ApprovalPolicy{Action: "ask", Roles: []string{"AGENT", "BUTLER"}, People: []int64{9, 2}, Requester: "always"}, agent,
			[]*butlerv1.Actor{ada}, nil, []*butlerv1.Actor{agent, butler}},
		{"the policy refused", &butlerv1.ApprovalPolicy{Action: "refuse", Roles: admins, Requester: "always"}, bob,
			[]*butlerv1.Actor{ada, bob}, nil, []*butlerv1.Actor{ada, bob}},
		{"no policy", nil, bob, []*butlerv1.Actor{ada, bob}, nil, []*butlerv1.Actor{ada, bob, nobody}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := &butlerv1.Approval{Status: Pending, Requester: c.requester, Policy: c.policy}
			for _, p := range c.may {
				assert.True(t, MayDecide(a, p, c.people), p.GetName())
			}
			for _, p := range c.mayNot {
				assert.False(t, MayDecide(a, p, c.people), p.GetName())
			}
		})
	}
}

func TestWordsCountForTheEffectAsItIs(t *testing.T) {
	t.Parallel()
	word := func(by int64, yes bool, digest string) *butlerv1.ApprovalDecision {
		return &butlerv1.ApprovalDecision{By: &butlerv1.Actor{Id: by}, Approved: yes, Digest: digest}
	}
	a := &butlerv1.Approval{Digest: "new", Decisions: []*butlerv1.ApprovalDecision{
		word(1, true, "old"), word(3, true, "new"), word(3, true, "new"), word(4, false, "new"), word(0, true, "new"),
	}}
	assert.Equal(t, 1, Agreed(a), "one person, however often; not the policy, not of another effect")
	_, said := Said(a, 1)
	assert.False(t, said)
	yes, said := Said(a, 3)
	assert.True(t, yes && said)
	yes, said = Said(a, 4)
	assert.True(t, !yes && said)
}
