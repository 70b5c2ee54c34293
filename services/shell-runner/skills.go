package shell

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// Skill is a slash command that shell-runner does itself, without a command in the shell. docs/how-to/add-a-skill.md says how
// to add one.
type Skill interface {
	// Name names it in logs: letters, digits and -.
	Name() string
	// Description says in a few words what it does, for /help, in a language: en or zh.
	Description(language string) string
	// Triggers are the first words of messages that it takes: "/" and lower-case letters, digits or -.
	Triggers() []string
	// Execute does it. It may be called by several people at once, and ends when ctx does. A fault of class user is shown to
	// the person as it is.
	Execute(ctx context.Context, in SkillContext) (SkillResult, error)
}

// SkillContext is a message for a skill.
type SkillContext struct {
	Person   *butlerv1.Actor // may use shells here
	Text     string          // the message
	Trigger  string          // its first word, in lower case
	Args     []string        // the words after it
	Language string          // en or zh
	Host     string
	Dir      string // of the person's shell; "" when there is none
	Now      time.Time
}

// SkillResult is what to answer.
type SkillResult struct {
	Text string // Markdown, in the person's language; it is redacted before anybody sees it
}

// skillTimeout bounds a skill.
const skillTimeout = 10 * time.Second

func builtinSkills(s *Service) []Skill {
	return []Skill{logSkill{s.logbook}, systemSkill{root: "/proc"}}
}

// learn takes skills into use. Each trigger is one skill's, and none is a control's.
func (s *Service) learn(skills []Skill) error {
	s.skills = map[string]Skill{}
	for _, k := range skills {
		if len(k.Triggers()) == 0 {
			return fmt.Errorf("shell: the skill %s has no triggers", k.Name())
		}
		for _, t := range k.Triggers() {
			if len(t) < 2 || t[0] != '/' || strings.ToLower(t) != t || len(strings.Fields(t)) != 1 || strings.Contains(t[1:], "/") {
				return fmt.Errorf("shell: %q cannot trigger the skill %s: it is one word with a slash before it", t, k.Name())
			}
			if controls[t] || s.skills[t] != nil {
				return fmt.Errorf("shell: %s of the skill %s is taken", t, k.Name())
			}
			s.skills[t] = k
		}
		s.order = append(s.order, k)
	}
	return nil
}

// skill has a skill answer. What goes wrong in it is no reason for anything else to.
func (c *control) skill(ctx context.Context, k Skill, text string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, skillTimeout)
	defer cancel()
	in := SkillContext{
		Person: c.req.GetPerson(), Text: text, Trigger: firstField(text), Args: c.args, Language: c.req.GetLanguage(), Host: c.host, Now: c.now(),
	}
	if c.sess != nil {
		in.Dir = c.sess.Dir()
	}
	defer func() {
		if p := recover(); p != nil {
			err = fault.Wrap(fmt.Errorf("panic: %v", p), fault.Internal, "the skill %s failed", k.Name())
			c.log.ErrorContext(ctx, "a skill failed", "skill", k.Name(), "error", err)
		}
	}()
	out, err := k.Execute(ctx, in)
	if err != nil {
		if _, known := errors.AsType[*fault.Error](err); known {
			return err
		}
		return fault.Wrap(err, fault.Unavailable, "the skill %s failed", k.Name())
	}
	c.out.Text, _ = c.redactor.String(out.Text)
	return nil
}
