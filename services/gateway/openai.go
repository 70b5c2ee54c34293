package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/approval"
	"github.com/butlerhub/butler/pkg/chat"
	"github.com/butlerhub/butler/pkg/fault"
	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// sessionHeader names the conversation in which an OpenAI client speaks: the number of one, or any name, which makes one.
const sessionHeader = "X-Butler-Session"

// completions serves POST /v1/chat/completions.
func (s *Service) completions(w http.ResponseWriter, r *http.Request, who *principal) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCompletionBody))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return fault.New(fault.TooLarge, "the body has at most %d KiB", maxCompletionBody>>10)
		}
		return fault.Wrap(err, fault.Invalid, "the body could not be read")
	}
	req, err := decodeCompletion(body)
	if err != nil {
		return err
	}
	// What follows may take longer than a request's body.
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	out := newCompletionWriter(w, req, s.now())
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(s.ending, func() { cancel(errGoingAway) })
	defer stop()
	guest := s.access.enter(who, func() { cancel(errSignedOut) })
	defer s.access.leave(guest)
	if session := r.Header.Get(sessionHeader); session != "" {
		err = s.completeInSession(ctx, r, who, session, req, out)
	} else {
		err = s.completeAlone(ctx, r, who, req, out)
	}
	if err == nil {
		return nil
	}
	if r.Context().Err() != nil {
		return nil // nobody is there to be told
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fault.Wrap(cause, fault.Unavailable, "the answer was cut off: %s", cause)
	}
	if !out.begun {
		return err
	}
	// Part of an answer was shown: it must not look whole, and not begin again.
	s.log.DebugContext(ctx, "a completion broke off", "error", err)
	out.fail(openAIError(err, s.sentence(r, err)))
	return nil
}

// completeAlone answers the request's own messages; nothing is remembered.
func (s *Service) completeAlone(ctx context.Context, r *http.Request, who *principal, req completion, out *completionWriter) error {
	if s.brain == nil {
		return fault.New(fault.Unavailable, "butler-brain is not running")
	}
	if wait := s.senders.take(who.id()); wait > 0 {
		return rateLimited(wait, "you are sending too fast; wait a moment")
	}
	ctx, cancel := context.WithCancel(ctx) // ends the call when the client goes away
	defer cancel()
	answer, err := s.brain.Complete(ctx, &butlerv1.CompleteRequest{
		Actor:    &butlerv1.Actor{Id: who.id(), Name: who.person.Name, Role: string(who.person.Role)},
		Messages: req.messages, Language: s.language(r, ""), Temperature: req.temperature, MaxTokens: req.maxTokens,
	})
	for err == nil {
		var piece *butlerv1.CompleteResponse
		if piece, err = answer.Recv(); err != nil {
			break
		}
		if err = out.text(piece.GetText()); err != nil {
			return err
		}
		if !piece.GetDone() {
			continue
		}
		if code := piece.GetErrorCode(); code != "" {
			return &reasonError{code, piece.GetErrorMessage()}
		}
		u := piece.GetUsage()
		return out.finish(piece.GetModel(), piece.GetFinishReason(), u.GetPromptTokens(), u.GetCompletionTokens())
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the stream ended without its last piece")
	}
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.TooLarge, fault.RateLimited:
		return err
	}
	return fault.Wrap(err, fault.Unavailable, "butler-brain does not answer now; try again")
}

// completeInSession says the request's last message in a conversation. The answer goes on when the client goes away.
func (s *Service) completeInSession(ctx context.Context, r *http.Request, who *principal, session string, req completion,
	out *completionWriter,
) error {
	if err := s.hub.ready(); err != nil {
		return err
	}
	thread, err := s.sessionThread(ctx, who, session)
	if err != nil {
		return err
	}
	language := s.language(r, "")
	wt := newWaiter(who.id())
	defer s.hub.leave(wt.outbox)
	a, err := s.send(ctx, who, outgoing{
		conversation: thread, localID: r.Header.Get("Idempotency-Key"), text: req.messages[len(req.messages)-1].GetText(),
		channel: "openai", language: language,
	}, func(turn chat.Turn) {
		wt.only, wt.approvals = turn.String(), true
		s.hub.join(wt.outbox)
		s.docket.greet(wt.outbox, false)
	})
	if err != nil {
		return err
	}
	// The message is said: a client that sends the request again by itself would say it twice.
	out.w.Header().Set("X-Should-Retry", "false")
	out.w.Header().Set("X-Butler-Conversation", strconv.FormatInt(thread, 10))
	if a.answer != nil {
		return out.answer(a.answer)
	}
	stream := ""       // from which text was sent
	abandoned := false // that stream ended without an answer
	wait := approvalWait{limit: s.settings.ApprovalWait, language: language}
	defer wait.end()
	for {
		over := wait.over()
		if out.due != nil {
			over = out.due
		}
		f, err := wt.next(ctx, over)
		switch {
		case err != nil:
			return err
		case f == nil && out.due != nil:
			if err := out.release(); err != nil {
				return err
			}
			continue
		case f == nil:
			out.w.Header().Set("X-Butler-Approval", wait.codes())
			return out.pending(wait.sentence(thread))
		case f.approval != nil:
			if err := out.aside(wait.note(f.approval.card)); err != nil {
				return err
			}
			continue
		}
		ev := f.event
		if wait.waited && (abandoned || stream != "" && ev.streamID != stream && ev.text != "") && ev.kind != eventAsked {
			// The work goes on after the decision, perhaps elsewhere: what is said from here on is the rest.
			if err := out.anew(); err != nil {
				return err
			}
			stream, abandoned = "", false
		}
		switch {
		case ev.kind == eventDelta && approval.ValidID(ev.streamID): // a command's output; the answer speaks of it
		case ev.kind == eventAnswer && f.ends, ev.kind == eventAsked:
		case ev.kind == eventAnswer && ev.status == chat.Failed:
			return &reasonError{ev.reason, ev.text}
		case abandoned, stream != "" && ev.streamID != stream && ev.text != "":
			return fault.New(fault.Unavailable, "the answer broke off and begins anew; it will stand in the conversation")
		case ev.kind == eventAnswer:
			return out.answer(ev)
		case f.ends:
			abandoned = stream == ev.streamID
		default:
			stream = ev.streamID
			if err := out.text(ev.text); err != nil {
				return err
			}
		}
	}
}

// sessionThread gives the conversation that X-Butler-Session names.
func (s *Service) sessionThread(ctx context.Context, who *principal, session string) (int64, error) {
	if id, err := strconv.ParseInt(session, 10, 64); err == nil && id >= 0 {
		return s.threads.resolve(ctx, who.id(), id)
	}
	return s.threads.named(ctx, who.id(), session)
}

// reasonError is an answer that says why there is none.
type reasonError struct{ code, sentence string }

func (e *reasonError) Error() string { return e.sentence }

// reasonStatus gives the HTTP status for the reason of a failed answer.
func reasonStatus(reason string) int {
	switch reason {
	case "rate_limited":
		return http.StatusTooManyRequests
	case "context_too_long":
		return http.StatusBadRequest
	case "model_unavailable", "cancelled":
		return http.StatusServiceUnavailable
	case "timeout":
		return http.StatusGatewayTimeout
	case "internal", "poison", "budget", "tool_loop":
		return http.StatusInternalServerError
	}
	return http.StatusBadGateway
}

// openAIErrorBody is an error in OpenAI's shape, and its status.
type openAIErrorBody struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

func openAIError(err error, sentence string) openAIErrorBody {
	out := openAIErrorBody{status: fault.HTTPStatus(err), Message: sentence, Code: string(fault.CodeOf(err))}
	if p, ok := errors.AsType[*param](err); ok {
		out.Param = &p.name
		if p.name == "model" && out.status == http.StatusNotFound {
			out.Code = "model_not_found"
		}
	}
	if e, ok := errors.AsType[*reasonError](err); ok {
		out.status, out.Message, out.Code = reasonStatus(e.code), e.sentence, e.code
		if e.code == "context_too_long" {
			out.Code = "context_length_exceeded"
		}
	}
	switch {
	case out.status == http.StatusUnauthorized:
		out.Type, out.Code = "authentication_error", "invalid_api_key"
	case out.status == http.StatusForbidden:
		out.Type = "permission_error"
	case out.status == http.StatusTooManyRequests:
		out.Type, out.Code = "rate_limit_error", "rate_limit_exceeded"
	case out.status < 500:
		out.Type = "invalid_request_error"
	default:
		out.Type = "server_error"
	}
	return out
}

// writeOpenAIError answers an error in OpenAI's shape.
func (s *Service) writeOpenAIError(w http.ResponseWriter, r *http.Request, err error) {
	body := openAIError(err, s.sentence(r, err))
	if body.status == http.StatusInternalServerError {
		s.log.ErrorContext(r.Context(), "a request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	retryHeader(w, err)
	writeJSON(w, body.status, map[string]any{"error": body})
}

// modelNames gives the models that clients may name: Butler, first, and what butler-brain says that it uses. Any other name
// in a completion means Butler too.
func (s *Service) modelNames(ctx context.Context) ([]string, error) {
	if s.brain == nil {
		return nil, fault.New(fault.Unavailable, "butler-brain is not running")
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	res, err := s.brain.ListModels(ctx, &butlerv1.ListModelsRequest{})
	if err != nil {
		return nil, fault.Wrap(err, fault.Unavailable, "butler-brain does not answer now; try again")
	}
	names := slices.DeleteFunc(res.GetModels(), func(name string) bool { return name == defaultModel })
	return append([]string{defaultModel}, names...), nil
}

// defaultModel is the name under which clients ask for whatever model Butler is set to use.
const defaultModel = "butler"

func modelObject(name string) map[string]any {
	return map[string]any{"id": name, "object": "model", "created": 1, "owned_by": "butler"}
}

// models serves GET /v1/models.
func (s *Service) models(w http.ResponseWriter, r *http.Request, _ *principal) error {
	names, err := s.modelNames(r.Context())
	if err != nil {
		return err
	}
	data := make([]map[string]any, 0, len(names))
	for _, n := range names {
		data = append(data, modelObject(n))
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data})
	return nil
}

// model serves GET /v1/models/{model}.
func (s *Service) model(w http.ResponseWriter, r *http.Request, _ *principal) error {
	names, err := s.modelNames(r.Context())
	if err != nil {
		return err
	}
	for _, n := range names {
		if n == r.PathValue("model") {
			writeJSON(w, http.StatusOK, modelObject(n))
			return nil
		}
	}
	return &param{"model", fault.New(fault.NotFound, "there is no model %q; GET /v1/models lists them", clip(r.PathValue("model")))}
}

// completionWriter writes an answer as OpenAI's chat API does: whole, or in chunks.
type completionWriter struct {
	w       http.ResponseWriter
	events  eventWriter
	req     completion
	id      string
	created time.Time
	prefix  []byte // what begins every chunk
	begun   bool   // part of the answer was sent: errors come as a chunk from now on
	loose   bool   // the answer began anew after a wait: what was sent before is not the beginning of its text
	sent    strings.Builder

	shown string           // what the client has of a text that ended, until the next one says something else
	tail  string           // the last piece that was streamed
	held  []string         // words beside the answer that wait for the end of its sentence
	due   <-chan time.Time // when they no longer do; nil while there are none
}

func newCompletionWriter(w http.ResponseWriter, req completion, now time.Time) *completionWriter {
	c := &completionWriter{
		w: w, events: eventWriter{w: w, control: http.NewResponseController(w)}, req: req,
		id: "chatcmpl-" + rand.Text(), created: now,
	}
	if c.req.model == "" {
		c.req.model = defaultModel
	}
	b := stringField([]byte(`{"object":"chat.completion.chunk"`), "id", c.id)
	b = strconv.AppendInt(field(b, "created"), now.Unix(), 10)
	c.prefix = stringField(b, "model", c.req.model)
	return c
}

// text adds a piece of the answer.
func (c *completionWriter) text(piece string) error {
	if piece == "" {
		return nil
	}
	c.sent.WriteString(piece)
	if !c.req.stream {
		return nil
	}
	if c.shown != "" {
		all := c.sent.String()
		if strings.HasPrefix(c.shown, all) {
			return nil
		}
		rest, again := strings.CutPrefix(all, c.shown)
		if piece = rest; !again {
			piece = "\n\n" + all
		}
		c.shown = ""
	}
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.content(piece); err != nil {
		return err
	}
	if len(c.held) > 0 && !c.midSentence() {
		return c.release()
	}
	return nil
}

// content sends a chunk with text.
func (c *completionWriter) content(text string) error {
	c.tail = text
	return c.chunk(append(appendString([]byte(`{"content":`), text), '}'), "")
}

// begin sends what comes before the first piece.
func (c *completionWriter) begin() error {
	if c.begun {
		return nil
	}
	c.begun = true
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	return c.chunk([]byte(`{"role":"assistant","content":""}`), "")
}

func (c *completionWriter) chunk(delta []byte, finish string) error {
	b := append([]byte("data: "), c.prefix...)
	b = append(b, `,"choices":[{"index":0,"delta":`...)
	b = append(b, delta...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	if finish == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, finish)
	}
	b = append(b, "}]"...)
	if c.req.usage {
		b = append(b, `,"usage":null`...)
	}
	return c.events.send(append(b, "}\n\n"...), true)
}

// answer ends with the final message of a turn. Its text is whole: what was not streamed of it is sent now.
func (c *completionWriter) answer(ev *event) error {
	if ev.status == chat.Failed {
		return &reasonError{ev.reason, ev.text}
	}
	c.held = nil // nothing is waited for any more
	rest, extends := strings.CutPrefix(ev.text, c.sent.String())
	if !extends && c.loose {
		if extends = true; c.shown != "" || !strings.HasSuffix(ev.text, c.sent.String()) {
			if err := c.anew(); err != nil {
				return err
			}
			rest = ev.text
		} else {
			rest = ""
		}
	}
	if !extends {
		if c.begun {
			return fault.New(fault.Unavailable, "the answer is another than what was streamed; it stands in the conversation")
		}
		c.sent.Reset()
		rest = ev.text
	}
	if err := c.text(rest); err != nil {
		return err
	}
	return c.finish(ev.model, "stop", ev.usage.prompt, ev.usage.completion)
}

// finish ends the answer.
func (c *completionWriter) finish(model, reason string, prompt, completion int64) error {
	if reason == "" {
		reason = "stop"
	}
	usage := map[string]any{"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
	if !c.req.stream {
		writeJSON(c.w, http.StatusOK, map[string]any{
			"id": c.id, "object": "chat.completion", "created": c.created.Unix(), "model": c.req.model,
			"choices": []any{map[string]any{
				"index": 0, "logprobs": nil, "finish_reason": reason,
				"message": map[string]any{"role": "assistant", "content": c.sent.String(), "refusal": nil},
			}},
			"usage": usage, "system_fingerprint": model,
		})
		return nil
	}
	if err := c.begin(); err != nil {
		return err
	}
	if err := c.chunk([]byte("{}"), reason); err != nil {
		return err
	}
	var b []byte
	if c.req.usage {
		b = append([]byte("data: "), c.prefix...)
		b = append(b, `,"choices":[],"usage":{"prompt_tokens":`...)
		b = strconv.AppendInt(b, prompt, 10)
		b = append(b, `,"completion_tokens":`...)
		b = strconv.AppendInt(b, completion, 10)
		b = append(b, `,"total_tokens":`...)
		b = strconv.AppendInt(b, prompt+completion, 10)
		b = append(b, "}}\n\n"...)
	}
	return c.events.send(append(b, "data: [DONE]\n\n"...), true)
}

// fail ends a stream that broke off with an error chunk.
func (c *completionWriter) fail(e openAIErrorBody) {
	b := append([]byte(`data: {"error":{"message":`), appendString(nil, e.Message)...)
	b = stringField(b, "type", e.Type)
	b = append(b, `,"param":null`...)
	b = stringField(b, "code", e.Code)
	_ = c.events.send(append(b, "}}\n\n"...), true) // the client is gone, or has it
}
