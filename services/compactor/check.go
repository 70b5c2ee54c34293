package compactor

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/butlerhub/butler/pkg/memory"
	"github.com/butlerhub/butler/pkg/tokens"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// rejected says why what a model wrote is no summary.
type rejected struct{ why string }

func (r *rejected) Error() string { return r.why }

func reject(format string, args ...any) error { return &rejected{fmt.Sprintf(format, args...)} }

// judge reads a model's answer as a summary of at most limit tokens that replaces replaced tokens. Lines that make a
// permission of what was said are left out; removed counts them. The error is a *rejected.
func judge(a Answer, limit, replaced int) (parts []*butlerv1.SummaryPart, removed int, err error) {
	text := plain(a.Text)
	switch {
	case text == "":
		return nil, 0, reject("it was empty")
	case a.Cut:
		return nil, 0, reject("it was cut off at its end: write less")
	case garbled(text):
		return nil, 0, reject("it is no readable text")
	}
	found := headings(text)
	said := 0
	for _, part := range memory.Parts {
		body, ok := found[part.Name]
		if !ok {
			return nil, 0, reject("the heading %q is missing", part.Title)
		}
		kept, n := withoutPermissions(body)
		removed += n
		if nothing(kept) {
			kept = ""
		} else {
			said++
		}
		parts = append(parts, &butlerv1.SummaryPart{Name: part.Name, Text: kept})
	}
	size := tokens.Count(memory.Text(&butlerv1.ChatSummary{Parts: parts}))
	switch {
	case said == 0:
		return nil, 0, reject("all parts were empty")
	case size > limit:
		return nil, 0, reject("it has %d tokens; at most %d are kept", size, limit)
	case size >= replaced && replaced > limit/4:
		return nil, 0, reject("it is longer than what it replaces: %d tokens for %d", size, replaced)
	}
	return parts, removed, nil
}

var thinking = regexp.MustCompile(`(?s)<think(ing)?>.*?</think(ing)?>`)

// plain takes away what models put around an answer.
func plain(s string) string {
	s = strings.TrimSpace(thinking.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), ""))
	if strings.HasPrefix(s, "```") && strings.HasSuffix(s, "```") && len(s) > 6 {
		s = s[strings.IndexByte(s+"\n", '\n'):]
		s = strings.TrimSuffix(s, "```")
	}
	return strings.TrimSpace(s)
}

// garbled says that a text is not one that somebody wrote: broken characters, or the same lines again and again.
func garbled(s string) bool {
	odd, all := 0, 0
	for _, r := range s {
		all++
		if r == utf8.RuneError || unicode.IsControl(r) && r != '\n' && r != '\t' && r != '\r' {
			odd++
		}
	}
	lines, different := 0, map[string]bool{}
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && !nothing(line) {
			lines++
			different[line] = true
		}
	}
	return odd*50 > all || lines > 12 && len(different)*2 < lines
}

var heading = regexp.MustCompile(`^\s*(?:#{1,6}|\*\*)\s*(?:\d+[.)]\s*)?(.+?)[\s:：*#]*$`)

// headings gives the text under each of the parts' headings. What stands before the first is passed over.
func headings(s string) map[string]string {
	titles := map[string]string{}
	for _, p := range memory.Parts {
		titles[strings.ToLower(p.Title)] = p.Name
	}
	out := map[string]string{}
	name := ""
	for line := range strings.Lines(s) {
		if m := heading.FindStringSubmatch(strings.TrimRight(line, "\r\n")); m != nil {
			if n, ok := titles[strings.ToLower(strings.TrimSpace(m[1]))]; ok {
				name = n
				out[name] += ""
				continue
			}
		}
		if name != "" {
			out[name] += line
		}
	}
	for name, text := range out {
		out[name] = strings.TrimSpace(text)
	}
	return out
}

var none = regexp.MustCompile(`(?i)^[\s\-*(（]*(none|nothing|n/?a|无|没有|暂无)?[\s.。)）\-*]*$`)

// nothing says that a part has nothing to say.
func nothing(s string) bool { return none.MatchString(s) }

// permission matches what would make a standing permission of something that was said. It is rather too broad: a line that
// is left out still stands in the conversation, and permissions are given by approval alone.
var permission = regexp.MustCompile(`(?i)` + strings.Join([]string{
	`\bpre-?(approved|authori[sz]ed)\b`,
	`\b(is|are|be|being|been|stays?|remains?|now|always|generally|hereby) +(\w+ +){0,2}(allowed|permitted|authori[sz]ed|approved|cleared|whitelisted)\b`,
	`\b(allowed|permitted|authori[sz]ed|free|entitled|cleared) +(to|for) +(run|execute|delete|remove|restart|stop|change|use|do|install|deploy|drop|write|push)\b`,
	`\b(no|without|skip|skips|skipping|bypass|bypassing) +(\w+ +){0,3}(approval|approvals|confirmation|permission|authori[sz]ation|asking|consent)\b`,
	`(\bnot|\bnever|n't|\bno longer) +(\w+ +){0,2}(ask|asking|asked|need|needs|needed|require|requires|required|confirm|wait)( +\w+){0,4} +(approval|approvals|confirmation|permission|authori[sz]ation|again|first|before)\b`,
	`\b(has|have|had|got|gave|gives|given|grants?|granted|with) +(\w+ +){0,4}(permission|authori[sz]ation|blanket|standing|full) *(\w+ +){0,2}(to|for|approval|access)\b`,
	`\b(standing|blanket|general|permanent|future|automatic) +(\w+ +)?(approval|permission|consent|authori[sz]ation)s?\b`,
	`\b(approves?|approved|allows?|allowed|permits?|permitted) +(all|any|every|everything|anything|future|further|such|these kinds?)\b`,
	`\b(may|can|could|should) +(\w+ +){0,3}(run|execute|delete|remove|restart|proceed|continue)( +\S+){0,6} +(without|freely|any ?time|at will|again|from now on)\b`,
	`\bauto-?approv`,
	`(无需|不用|不需|不必|无须|毋须|跳过|免)(\p{Han}|\w){0,6}(批准|审批|授权|确认|许可|询问|同意)`,
	`(已|已经|获得|得到|拥有|长期|永久|一律|总是|始终|今后|以后|一直)(\p{Han}){0,6}(授权|许可|允许|权限)`,
	`(以后|今后|总是|始终|一律|都)(\p{Han}){0,6}(批准|同意|可以|允许)`,
	`(允许|有权|可以|可)(\p{Han}){0,4}(直接|随意|自由|任意)(\p{Han}){0,4}(执行|运行|删除|重启|操作)`,
	`(被|获)(允许|批准|准许)(\p{Han}){0,6}(执行|运行|删除|重启)`,
}, "|"))

// withoutPermissions leaves out the lines that make a permission of what was said, and counts them.
func withoutPermissions(s string) (kept string, removed int) {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if permission.MatchString(line) {
			removed++
			continue
		}
		b.WriteString(line)
	}
	return strings.TrimSpace(b.String()), removed
}
