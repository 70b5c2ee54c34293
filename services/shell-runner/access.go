package shell

import (
	"slices"
	"strconv"
	"strings"

	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// allow says nil when the person may use a shell. Nobody else learns more than whom to ask.
func (s *Service) allow(person *butlerv1.Actor) error { return s.allowIn(person, "") }

// allowIn is allow with its sentence in a language.
func (s *Service) allowIn(person *butlerv1.Actor, language string) error {
	if person.GetId() <= 0 {
		return fault.New(fault.Invalid, "a shell belongs to a person")
	}
	if person.GetRole() == "ADMIN" || person.GetRole() == "MEMBER" {
		allowed := s.settings.Load().AllowedUsers
		if slices.ContainsFunc(allowed, func(a string) bool {
			a = strings.TrimSpace(a)
			return a != "" && (a == strconv.FormatInt(person.GetId(), 10) || a == person.GetName())
		}) {
			return nil
		}
	}
	return fault.New(fault.Forbidden, say(language, "you may not use the shells of %s; ask an administrator to add you to "+
		"security.allowed_users (BUTLER_ALLOWED_USERS): your id is %d",
		"你无权使用 %s 的 shell；请联系管理员把你加入 security.allowed_users（BUTLER_ALLOWED_USERS）：你的编号是 %d"), s.host, person.GetId())
}
