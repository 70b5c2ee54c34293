package gateway

import (
	"fmt"
	"strings"
	"unicode"

	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
)

// chinese has the sentences of ERROR frames that people meet. What is missing has one for its kind.
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
	fmt.Sprintf("a frame has at most %d KiB", maxFrame>>10):                   fmt.Sprintf("一帧最多 %d KiB", maxFrame>>10),
}

var chineseKinds = map[fault.Code]string{
	fault.Invalid:         "请求有误",
	fault.TooLarge:        fmt.Sprintf("内容太长，一条消息最多 %d KiB", chat.MaxText>>10),
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
	if words, ok := chinese[said]; ok {
		return words
	}
	code := fault.CodeOf(err)
	words, ok := chineseKinds[code]
	switch {
	case !ok:
		return said
	case code == fault.Invalid, code == fault.Conflict, code == fault.Forbidden, code == fault.NotFound:
		return words + "（" + said + "）"
	}
	return words
}
