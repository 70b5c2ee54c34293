package shell

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

// logSkill searches the shell log: what a person's own shells executed.
type logSkill struct{ book *logbook }

// Name names the skill.
func (logSkill) Name() string { return "log" }

// Triggers are as published.
func (logSkill) Triggers() []string { return []string{"/log", "/history"} }

// Description is for /help.
func (logSkill) Description(language string) string {
	return say(language, "what was executed: words, `--since 2h` or a date, `--status ok|failed|refused|unknown`, `-n 20`; `/log 12` shows one whole",
		"执行记录：关键词、`--since 2h` 或日期、`--status ok|failed|refused|unknown`、`-n 20`；`/log 12` 查看完整输出")
}

const (
	logLines    = 10
	maxLogLines = 50
)

// Execute answers with a list, or with one entry.
func (k logSkill) Execute(ctx context.Context, in SkillContext) (SkillResult, error) {
	q, id, err := parseLogQuery(in)
	if err != nil {
		return SkillResult{}, err
	}
	if id > 0 {
		e, found, err := k.book.entry(ctx, in.Person.GetId(), id)
		if err != nil {
			return SkillResult{}, err
		}
		if !found {
			return SkillResult{}, fault.New(fault.NotFound, say(in.Language, "your log has no entry %d; /log lists the newest", "你的记录中没有 %d；/log 列出最新记录"), id)
		}
		return SkillResult{Text: e.whole(in.Language)}, nil
	}
	entries, err := k.book.search(ctx, q)
	if err != nil {
		return SkillResult{}, err
	}
	if len(entries) == 0 {
		return SkillResult{Text: say(in.Language, "The log has nothing that fits.", "没有符合条件的记录。")}, nil
	}
	var b strings.Builder
	for _, e := range entries {
		fmt.Fprintf(&b, "- **%d** %s `%s` — %s, %s:%s\n", e.ID, e.At.Format("2006-01-02 15:04:05"), inline(e.Command), e.ended(in.Language), e.Host, e.Dir)
	}
	b.WriteString("\n" + say(in.Language, "`/log <number>` shows one with its output.", "`/log <编号>` 查看输出。"))
	return SkillResult{Text: b.String()}, nil
}

// ended says how a command ended.
func (e entry) ended(language string) string {
	switch {
	case e.Status != "ended":
		return map[string]string{"refused": say(language, "not run", "未执行"), "unknown": say(language, "outcome unknown", "结果未知")}[e.Status]
	case e.Exit == nil:
		return say(language, "ended", "已结束")
	}
	return fmt.Sprintf(say(language, "status %d, %s", "状态 %d，%s"), *e.Exit, e.Duration.Round(time.Millisecond))
}

// whole shows an entry with its output.
func (e entry) whole(language string) string {
	rows := [][2]string{
		{say(language, "when", "时间"), e.At.Format(time.RFC3339)}, {say(language, "where", "位置"), e.Host + ":" + e.Dir},
		{say(language, "ended", "结果"), e.ended(language)},
	}
	if e.Approved {
		rows = append(rows, [2]string{say(language, "approved by", "审批人"), cmp.Or(e.Approver, say(language, "the policy", "策略"))})
	}
	text := fencedAs("sh", e.Command) + "\n" + table(rows)
	if e.Output != "" {
		text += "\n" + fenced(e.Output)
	}
	return text
}

// parseLogQuery reads the words after /log. A lone number is an entry's.
func parseLogQuery(in SkillContext) (q logQuery, id int64, err error) {
	q = logQuery{Person: in.Person.GetId(), Limit: logLines}
	bad := func(en, zh string, args ...any) (logQuery, int64, error) {
		return q, 0, fault.New(fault.Invalid, say(in.Language, en, zh), args...)
	}
	if len(in.Args) == 1 {
		if id, err := strconv.ParseInt(in.Args[0], 10, 64); err == nil && id > 0 {
			return q, id, nil
		}
	}
	for i := 0; i < len(in.Args); i++ {
		name, value, given := strings.Cut(in.Args[i], "=")
		switch name {
		case "--since", "--status", "-n":
			if !given {
				if i++; i == len(in.Args) {
					return bad("%s needs a value", "%s 需要一个值", name)
				}
				value = in.Args[i]
			}
		default:
			if strings.HasPrefix(in.Args[i], "-") {
				return bad("%.30q is no option; there are --since, --status and -n", "没有选项 %.30q；可用 --since、--status 和 -n", in.Args[i])
			}
			if len(q.Words) == 10 {
				return bad("search for at most 10 words", "最多搜索 10 个词")
			}
			q.Words = append(q.Words, in.Args[i])
			continue
		}
		switch name {
		case "--since":
			since, ok := parseSince(value, in.Now)
			if !ok {
				return bad("--since is a span such as 90m, 2h or 3d, or a date such as 2026-12-01; %.30q is neither",
					"--since 应为 90m、2h、3d 这样的时间段，或 2026-12-01 这样的日期；%.30q 都不是", value)
			}
			q.Since = since
		case "--status":
			switch value {
			case "ok", "failed", "ended", "refused", "unknown":
				q.Status = value
			default:
				return bad("--status is ok, failed, ended, refused or unknown", "--status 应为 ok、failed、ended、refused 或 unknown")
			}
		case "-n":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxLogLines {
				return bad("-n is a number from 1 to %d", "-n 应为 1 到 %d 的数字", maxLogLines)
			}
			q.Limit = n
		}
	}
	return q, 0, nil
}

// parseSince reads a span before now, or a day or a time in the local zone.
func parseSince(value string, now time.Time) (time.Time, bool) {
	if days, ok := strings.CutSuffix(value, "d"); ok {
		n, err := strconv.Atoi(days)
		return now.AddDate(0, 0, -n), err == nil && n >= 0 && n < 100_000
	}
	if d, err := time.ParseDuration(value); err == nil {
		return now.Add(-d), d >= 0
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, value, now.Location()); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}
