package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode"

	"github.com/butlerhub/butler/pkg/fault"
)

// chinese has the sentences of errors that people meet, of frames and of the HTTP API. What is missing has one for its kind.
var chinese = map[string]string{
	"the message is empty":                                                    "消息是空的",
	"a message must be UTF-8":                                                 "消息必须是 UTF-8 文本",
	"a message must not contain the character NUL":                            "消息不能含有 NUL 字符",
	"you are sending too fast; wait a moment":                                 "发送太快，请稍等片刻",
	"there is no such conversation":                                           "没有这个会话",
	"the answer could not be stopped now; try again":                          "现在无法停止回答，请重试",
	"your sign-in has ended; sign in again":                                   "登录已失效，请重新登录",
	"Butler is starting and waits for its log; try again in a moment":         "Butler 正在启动，请稍后重试",
	"Butler cannot take messages now; send it again with the same local_id":   "Butler 现在无法接收消息，请用相同的 local_id 重新发送",
	"another message was sent with this local_id; use a new one":              "这个 local_id 已用于另一条消息，请换一个新的",
	"this conversation is not with Butler; agents are reached through Butler": "这个会话的对方不是 Butler；请通过 Butler 联系代理",
	"after must be the seq of the last frame you received, a whole number":    "after 必须是您收到的最后一帧的 seq，一个整数",

	"sign in first":                                                                 "请先登录",
	"the name or the password is wrong":                                             "用户名或密码错误",
	"the token is not valid; sign in again":                                         "令牌无效，请重新登录",
	"this person cannot sign in":                                                    "此用户无法登录",
	"sign-ins cannot be checked now; try again in a moment":                         "现在无法核对登录，请稍后重试",
	"too many sign-ins at once; try again in a moment":                              "同时登录的人太多，请稍后重试",
	tooManySignIns:                                                                  "登录失败次数过多，请稍等片刻再试",
	"username and password are needed":                                              "需要用户名和密码",
	"current_password and new_password are needed":                                  "需要当前密码和新密码",
	"the current password is not right":                                             "当前密码不正确",
	"only an administrator may do this":                                             "只有管理员可以执行此操作",
	"this request comes from another web site; it is not allowed":                   "此请求来自其他网站，不允许执行",
	"role, password or disabled is needed":                                          "需要 role、password 或 disabled",
	"Butler cannot be changed":                                                      "不能修改 Butler",
	"there is no such person":                                                       "没有这个用户",
	"there is nobody with this id to talk to":                                       "没有这个编号的对话对象",
	"this would leave no admin who can sign in; make another person an admin first": "这样就没有可以登录的管理员了，请先将另一人设为管理员",
	"a personal token needs a name":                                                 "个人令牌需要一个名称",
	"there is no such token":                                                        "没有这个令牌",
	"expires_in_days must be 1 to 36500, or 0 for a token that does not expire":     "expires_in_days 必须为 1 到 36500；0 表示不过期",
	"a title must be UTF-8":                                                         "标题必须是 UTF-8 文本",
	"before must be the id of a message":                                            "before 必须是一条消息的 id",
	"archived is true, false or all":                                                "archived 只能是 true、false 或 all",
	"the body could not be read":                                                    "无法读取请求内容",
	"the body is not a JSON object as this request needs it":                        "请求内容不是此请求所需的 JSON 对象",
	"the conversation could not be erased from the log now; try again":              "现在无法从日志中清除会话，请重试",
	"approval is the action_id of a request":                                        "approval 是审批请求的 action_id",
	"approval, which keeps the audit chain, does not answer now; try again":         "保存审计链的审批服务暂时没有响应，请重试",
	"the audit chain is being checked already; wait until that is done":             "审计链正在核对中，请等待完成",
	"before is what X-Next-Before of the page before it says":                       "before 是上一页 X-Next-Before 的值",
	"status is one of PENDING, APPROVED, REJECTED, EXPIRED, WITHDRAWN and REFUSED":  "status 只能是 PENDING、APPROVED、REJECTED、EXPIRED、WITHDRAWN 或 REFUSED",
	"butler-brain is not running":                                                   "butler-brain 没有运行",
	"butler-brain does not answer now; try again":                                   "butler-brain 暂时没有响应，请重试",
	"the agent registry is not running":                                             "代理注册服务没有运行",
	"the agent registry does not answer now; try again":                             "代理注册服务暂时没有响应，请重试",
	"this takes too long now; try again":                                            "现在耗时太长，请重试",
}

// chineseForms are sentences with numbers or names in them: ${1} and so on are what stands in their place.
var chineseForms = []form{
	newForm("a frame has at most %d KiB", "一帧最多 ${1} KiB"),
	newForm("the body has at most %d KiB", "请求内容最多 ${1} KiB"),
	newForm("a message has at most %d KiB; this one has %d", "内容太长，一条消息最多 ${1} KiB"),
	newForm("a password must have %d to %d bytes", "密码必须为 ${1} 到 ${2} 字节"),
	newForm("the name %s is taken; choose another", "名称 ${1} 已被使用，请换一个"),
	newForm("the role must be %s or %s", "角色必须是 ${1} 或 ${2}"),
	newForm("the name of a token has at most %d characters, none of them control characters", "令牌名称最多 ${1} 个字符，不能含有控制字符"),
	newForm("there are %d personal tokens already; revoke one first", "已有 ${1} 个个人令牌，请先撤销一个"),
	newForm("there are %d conversations already; delete some first", "已有 ${1} 个会话，请先删除一些"),
	newForm("a title has at most %d characters", "标题最多 ${1} 个字符"),
	newForm("a summary has at most %d characters", "摘要最多 ${1} 个字符"),
	newForm("what is searched for has at most %d characters", "搜索内容最多 ${1} 个字符"),
	newForm("the name of a session must have 1 to %d bytes of UTF-8 without control characters", "会话名称必须为 1 到 ${1} 字节的 UTF-8 文本，不能含有控制字符"),
	newForm("a local_id has at most %d bytes of UTF-8 without control characters", "local_id 最多 ${1} 字节的 UTF-8 文本，不能含有控制字符"),
	newForm("wait is a number of seconds, at most %d", "wait 是秒数，最多 ${1}"),
	newForm("%s must be a whole number from %d to %d", "${1} 必须是 ${2} 到 ${3} 之间的整数"),
	newForm("%s must be a whole number of at least %d", "${1} 必须是不小于 ${2} 的整数"),
	newForm("you have no conversation with %d; Butler is %d", "您和 ${1} 没有会话；Butler 是 ${2}"),
	newForm("messages go to Butler, target_id %d; agents are reached through Butler", "消息发给 Butler（target_id ${1}）；请通过 Butler 联系代理"),
	newForm("there is no model %s; GET /v1/models lists them", "没有模型 ${1}；GET /v1/models 会列出所有模型"),
	newForm("there is no /%s", "没有 /${1}"),
	newForm("there is no %s /%s", "没有 ${1} /${2}"),
}

// form is a sentence that is not always the same.
type form struct {
	english *regexp.Regexp
	words   string
}

// newForm makes a form; %d stands for a number, %s for anything.
func newForm(english, words string) form {
	like := strings.NewReplacer("%d", `(\d+)`, "%s", `(.+)`).Replace(regexp.QuoteMeta(english))
	return form{regexp.MustCompile("^" + like + "$"), words}
}

// maxForm bounds the sentences that are compared with forms, in bytes.
const maxForm = 1 << 10

// inChinese gives the Chinese of a sentence that is known.
func inChinese(said string) (string, bool) {
	if words, ok := chinese[said]; ok {
		return words, true
	}
	if len(said) > maxForm {
		return "", false
	}
	for _, f := range chineseForms {
		if at := f.english.FindStringSubmatchIndex(said); at != nil {
			return string(f.english.ExpandString(nil, f.words, said, at)), true
		}
	}
	return "", false
}

var chineseKinds = map[fault.Code]string{
	fault.Invalid:         "请求有误",
	fault.TooLarge:        "内容太长",
	fault.RateLimited:     "请求太多，请稍后重试",
	fault.Unavailable:     "Butler 现在无法处理，请稍后重试",
	fault.NotFound:        "没有找到",
	fault.Forbidden:       "没有权限",
	fault.Conflict:        "与现有内容冲突",
	fault.Unauthenticated: "请先登录",
	fault.Internal:        "内部错误，已记录在日志中",
}

// sentenceIn gives an error's sentence for people in a language, en or zh. Chinese for its kind alone is followed by the
// English sentence where that says more.
func sentenceIn(language string, err error) string {
	said := fault.MessageOf(err)
	if language != "zh" || strings.ContainsFunc(said, func(r rune) bool { return unicode.Is(unicode.Han, r) }) {
		return said
	}
	if words, ok := inChinese(said); ok {
		return words
	}
	code := fault.CodeOf(err)
	words, ok := chineseKinds[code]
	switch {
	case !ok:
		return said
	case code == fault.Invalid, code == fault.TooLarge, code == fault.Conflict, code == fault.Forbidden, code == fault.NotFound:
		return words + "（" + said + "）"
	}
	return words
}

// spoken is an error for somebody who said in the request's body what they read.
type spoken struct {
	error
	language string
}

func (e *spoken) Unwrap() error { return e.error }

// inLanguage marks an error as one for a reader of a language.
func inLanguage(language string, err error) error {
	if err == nil {
		return nil
	}
	return &spoken{err, language}
}

// sentence gives an error's sentence in the language of who made the request.
func (s *Service) sentence(r *http.Request, err error) string {
	language := ""
	if e, ok := errors.AsType[*spoken](err); ok {
		language = e.language
	}
	return sentenceIn(cmp.Or(language, s.language(r, "")), err)
}

// maxLanguages and maxLanguageBytes bound what is read of Accept-Language.
const (
	maxLanguages     = 32
	maxLanguageBytes = 1 << 10
)

// acceptedLanguage gives the language that an Accept-Language header (RFC 9110) prefers among those that Butler speaks: en, zh, or
// "" when it names neither. Of the same weight the first counts.
func acceptedLanguage(header string) string {
	if len(header) > maxLanguageBytes {
		header = header[:strings.LastIndexByte(header[:maxLanguageBytes], ',')+1] // whole ones only
	}
	best, most := "", 0.0
	for i, part := range strings.Split(header, ",") {
		if i == maxLanguages {
			break
		}
		tag, params, _ := strings.Cut(part, ";")
		language, weight := knownLanguage(tag), 1.0
		if name, value, found := strings.Cut(params, "="); found && strings.EqualFold(strings.TrimSpace(name), "q") {
			q, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil || !(q >= 0 && q <= 1) {
				continue
			}
			weight = q
		}
		if language != "" && weight > most {
			best, most = language, weight
		}
	}
	return best
}

// knownLanguage gives en or zh for a tag such as en-GB, zh-CN or zh-Hans, and "" for any other language.
func knownLanguage(tag string) string {
	primary := strings.ToLower(strings.TrimSpace(tag))
	if i := strings.IndexAny(primary, "-_"); i >= 0 {
		primary = primary[:i]
	}
	if primary == "zh" || primary == "en" {
		return primary
	}
	return ""
}
