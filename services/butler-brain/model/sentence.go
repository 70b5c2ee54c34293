package model

import "strings"

type words struct{ en, zh string }

// sentences say what happened and what the reader, or whoever runs Butler, can do. They name no internals.
var sentences = map[Reason]words{
	Unavailable: {
		"The language model cannot be reached right now. Please try again in a minute; if it stays like this, " +
			"ask whoever runs Butler to check the model's endpoint.",
		"暂时无法连接语言模型。请稍后再试；如果一直如此，请联系 Butler 的管理员检查模型服务。",
	},
	RateLimited: {
		"The language model takes no more requests for now: its rate limit or quota is used up. Please try again " +
			"later; whoever runs Butler can raise the limit with the model's provider.",
		"语言模型暂时不再接受请求：已达到速率限制或额度用尽。请稍后再试；管理员可以向模型服务商提高限额。",
	},
	Rejected: {
		"The language model refused this request. Please rephrase it or start a new conversation; if every message " +
			"is refused, ask whoever runs Butler to check the model's settings.",
		"语言模型拒绝了这次请求。请换一种说法，或新建一个会话；如果每条消息都被拒绝，请联系管理员检查模型设置。",
	},
	Unauthorized: {
		"The language model does not accept Butler's credentials. Please ask whoever runs Butler to check " +
			"BUTLER_API_TOKEN.",
		"语言模型不接受 Butler 的凭据。请联系管理员检查 BUTLER_API_TOKEN。",
	},
	NotFound: {
		"The configured language model was not found. Please ask whoever runs Butler to check BUTLER_MODEL and " +
			"BUTLER_BASE_URL (its address often ends in /v1).",
		"找不到所配置的语言模型。请联系管理员检查 BUTLER_MODEL 和 BUTLER_BASE_URL（地址通常以 /v1 结尾）。",
	},
	ContextTooLong: {
		"This conversation has become too long for the language model. Please start a new conversation, or send a " +
			"shorter message.",
		"这个会话对语言模型来说太长了。请新建一个会话，或发送更短的消息。",
	},
	CutStream: {
		"The answer broke off before its end, also when it was tried again. Please ask again.",
		"回答在结束之前中断了，重试后仍然如此。请重新提问。",
	},
	EmptyAnswer: {
		"The language model gave an empty answer, also when it was tried again. Please rephrase your message.",
		"语言模型返回了空的回答，重试后仍然如此。请换一种说法再问。",
	},
	AnswerTooLong: {
		"The answer grew larger than Butler accepts and was stopped. Please ask for a shorter one, or in parts.",
		"回答超出了 Butler 允许的长度，已被中止。请要求更短的回答，或分几次提问。",
	},
	Cancelled: {
		"The answer was interrupted. Please ask again.",
		"回答被中断了。请重新提问。",
	},
	Timeout: {
		"The language model took too long to answer. Please try again; if it stays like this, ask whoever runs " +
			"Butler to check the model's endpoint.",
		"语言模型响应超时。请再试一次；如果一直如此，请联系管理员检查模型服务。",
	},
	ToolLoop: {
		"I kept using tools without coming to an answer and stopped. Please ask for a smaller step.",
		"我反复使用工具仍未得出答案，已停止。请把问题拆小一些再问。",
	},
	Budget: {
		"This request used up what one message may use and was stopped. Please ask for a smaller step.",
		"这次请求用完了单条消息的额度，已停止。请把问题拆小一些再问。",
	},
	AnswerCut: {
		"(The model's endpoint ended this answer before it was complete. Ask for the rest, or for a shorter answer.)",
		"（模型服务在回答完成前将其截断。可以请它继续，或要求更短的回答。）",
	},
	Stopped: {
		"Stopped at your request.",
		"已按你的要求停止。",
	},
	Poison: {
		"This message could not be processed after several attempts and was given up. Please send it again in other " +
			"words; whoever runs Butler finds the cause in the log.",
		"这条消息多次处理失败，已放弃。请换一种说法重新发送；管理员可以在日志中找到原因。",
	},
	Internal: {
		"Something went wrong inside Butler, and this message was not answered. Please try again; whoever runs " +
			"Butler finds the cause in the log.",
		"Butler 内部出错，这条消息没有得到回答。请再试一次；管理员可以在日志中找到原因。",
	},
}

// Sentence gives a reason's sentence for people: Chinese when lang begins with "zh", else English. A reason that is not
// known gets the sentence of Internal.
func Sentence(reason Reason, lang string) string {
	w, ok := sentences[reason]
	if !ok {
		w = sentences[Internal]
	}
	if Chinese(lang) {
		return w.zh
	}
	return w.en
}

// Chinese says whether lang is a Chinese language tag: zh, zh-CN, ….
func Chinese(lang string) bool {
	return strings.HasPrefix(strings.ToLower(lang), "zh")
}
