// Package client talks to a Butler gateway as the command line does: its HTTP API, and conversations over its
// WebSocket that survive a lost connection.
//
// Errors are *fault.Error with a sentence for people: Unauthenticated when nobody is signed in or the token is no
// longer valid, Unavailable when the server cannot be reached or cannot answer now, else what the server said.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// DefaultServer is where `butler up` listens unless it is told otherwise.
	DefaultServer = "http://127.0.0.1:8080"
	// callTimeout bounds a call of the HTTP API.
	callTimeout = 30 * time.Second
	// maxResponse bounds what is read of one response, in bytes.
	maxResponse = 32 << 20
)

// Client calls one gateway, as nobody or with a token. It is safe for concurrent use.
type Client struct {
	base      *url.URL // without a slash at the end
	token     string
	userAgent string
	language  string
	http      *http.Client
}

// New returns a client of the gateway at server, an http or https URL. token may be empty: then only Login and Ping are
// of use. Nothing is contacted.
func New(server, token, userAgent string) (*Client, error) {
	base, err := ParseServer(server)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // documented
	transport.DialContext = (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	return &Client{
		base: base, token: token, userAgent: userAgent,
		http: &http.Client{
			Transport: transport,
			// The token must not travel to where a redirect points.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// ParseServer checks a server's address and gives it without path ends, query or user.
func ParseServer(server string) (*url.URL, error) {
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fault.New(fault.Invalid, "the server's address must be like http://127.0.0.1:8080 or https://butler.example.org")
	}
	if u.User != nil {
		return nil, fault.New(fault.Invalid, "the server's address must hold no password: use `butler login` or BUTLER_TOKEN")
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

// Server is the gateway's address.
func (c *Client) Server() string { return c.base.String() }

// WithToken gives the same client with another token.
func (c *Client) WithToken(token string) *Client {
	d := *c
	d.token = token
	return &d
}

// WithLanguage gives the same client for a person who reads en or zh; "" leaves it to the server.
func (c *Client) WithLanguage(language string) *Client {
	d := *c
	d.language = language
	return &d
}

// say gives a sentence in the language of who reads it.
func (c *Client) say(en, zh string) string {
	if c.language == "zh" {
		return zh
	}
	return en
}

// SignedIn says whether the client has a token; it may still be refused.
func (c *Client) SignedIn() bool { return c.token != "" }

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call sends in as JSON, unless nil, and reads the response into out, unless nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	_, err := c.exchange(ctx, method, path, query, in, out)
	return err
}

// exchange is call, and gives the response's header when that is one of success.
func (c *Client) exchange(ctx context.Context, method, path string, query url.Values, in, out any) (http.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		body = bytes.NewReader(encoded)
	}
	target := *c.base
	target.Path += path
	target.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	c.identify(req.Header)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse+1))
	if err != nil {
		return nil, c.unreachable(err)
	}
	if len(data) > maxResponse {
		return nil, fault.New(fault.TooLarge, c.say("%s sent more than %d MiB; ask for less", "%s 发送的内容超过 %d MiB，请减少请求"), c.Server(), maxResponse>>20)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, c.refusal(resp, data)
	}
	if out == nil {
		return resp.Header, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return nil, c.notButler(err)
	}
	return resp.Header, nil
}

// stream gets what is read as it comes; the caller closes it.
func (c *Client) stream(ctx context.Context, path ...string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base.JoinPath(path...).String(), nil)
	if err != nil {
		return nil, err
	}
	c.identify(req.Header)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20)) // a proxy's page has no sentence anyway
		return nil, c.refusal(resp, data)
	}
	return resp.Body, nil
}

func (c *Client) notButler(err error) error {
	return fault.Wrap(err, fault.Internal, c.say("%s gave an answer that is not Butler's; is it the right address?", "%s 的回答不是 Butler 的，地址是否正确？"), c.Server())
}

func (c *Client) identify(h http.Header) {
	h.Set("Accept", "application/json")
	h.Set("User-Agent", c.userAgent)
	if c.language != "" {
		h.Set("Accept-Language", c.language)
	}
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
}

// refusal makes an error of a response that is none of success.
func (c *Client) refusal(resp *http.Response, data []byte) error {
	var body struct {
		Error string     `json:"error"`
		Code  fault.Code `json:"code"`
	}
	_ = json.Unmarshal(data, &body) // a proxy's page has neither
	code := body.Code
	if code == "" {
		code = codeOf(resp.StatusCode)
	}
	e := &fault.Error{Code: code, Message: printable(body.Error)}
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && after > 0 && after < 86400 {
		e.RetryAfter = time.Duration(after) * time.Second
	}
	switch {
	case e.Message != "":
	case resp.StatusCode/100 == 3:
		e.Code = fault.Invalid
		e.Message = fmt.Sprintf(c.say("%s sends on to another address; give that one with --server", "%s 转到了另一个地址，请用 --server 指定"), c.Server())
	default:
		e.Message = fmt.Sprintf(c.say("%s answered %d %s", "%s 返回了 %d %s"), c.Server(), resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	if e.Code == fault.Unauthenticated && c.token != "" {
		e.Message = fmt.Sprintf(c.say("the sign-in at %s is not valid any more: run `butler login`", "在 %s 的登录已失效，请运行 `butler login`"), c.Server())
	}
	return e
}

func codeOf(status int) fault.Code {
	for _, code := range []fault.Code{
		fault.Invalid, fault.TooLarge, fault.Unauthenticated, fault.Forbidden, fault.NotFound, fault.Conflict,
		fault.RateLimited, fault.Unavailable,
	} {
		if fault.HTTPStatus(fault.New(code, "")) == status {
			return code
		}
	}
	if status == http.StatusBadGateway || status == http.StatusGatewayTimeout {
		return fault.Unavailable
	}
	if status/100 == 4 {
		return fault.Invalid
	}
	return fault.Internal
}

func (c *Client) unreachable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.Wrap(cause(err), fault.Unavailable, c.say("%s does not answer", "%s 没有响应"), c.Server())
	}
	return fault.Wrap(cause(err), fault.Unavailable,
		c.say("%s cannot be reached: start Butler with `butler up`, or name its address with --server",
			"无法连接 %s：请用 `butler up` 启动 Butler，或用 --server 指定地址"), c.Server())
}

// cause takes the URL out of an HTTP error: the sentence names the server already.
func cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// printable cuts a server's sentence to what may be shown in a terminal.
func printable(s string) string {
	const most = 500
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return strings.TrimSpace(s)
}
