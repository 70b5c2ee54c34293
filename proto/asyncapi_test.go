package contracts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// document is the part of AsyncAPI 3.0 that asyncapi.yaml uses. It is read strictly: a field that stands in no struct
// here is an error.
type document struct {
	AsyncAPI           string `yaml:"asyncapi"`
	DefaultContentType string `yaml:"defaultContentType"`
	Info               struct {
		Title, Version, Description string
		License                     struct{ Name, URL string }
	}
	Servers map[string]struct{ Host, Protocol, Description string }

	Channels   map[string]channel
	Operations map[string]operation
	Components struct {
		Parameters map[string]struct{ Description string }
		Messages   map[string]event
		Schemas    map[string]schema
	}

	order []string // ids of the channels as they stand in the file
}

type reference struct {
	Ref string `yaml:"$ref"`
}

type channel struct {
	Address, Title, Description string
	Parameters, Messages        map[string]reference
	Stream                      string `yaml:"x-stream"`
	StoredAddress               string `yaml:"x-stored-address"`
	Kept                        string `yaml:"x-kept"`
}

type operation struct {
	Action   string
	Channel  reference
	Service  string `yaml:"x-service"`
	Consumer string `yaml:"x-consumer"`
	Through  string `yaml:"x-through"`
}

type event struct {
	Name, Title, Description string
	ContentType              string `yaml:"contentType"`
	Protobuf                 string `yaml:"x-protobuf"`
	Headers, Payload         schema
}

type schema struct {
	Ref         string `yaml:"$ref"`
	Type        string
	Description string
	Format      string
	Const       string
	MaxLength   *int `yaml:"maxLength"`
	Required    []string
	AllOf       []schema `yaml:"allOf"`
	Properties  map[string]schema
}

func load(t *testing.T) *document {
	t.Helper()
	data, err := os.ReadFile("asyncapi.yaml")
	require.NoError(t, err)
	d := &document{}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	require.NoError(t, dec.Decode(d))
	var keys struct{ Channels yaml.Node }
	require.NoError(t, yaml.Unmarshal(data, &keys))
	for i := 0; i < len(keys.Channels.Content); i += 2 {
		d.order = append(d.order, keys.Channels.Content[i].Value)
	}
	return d
}

// id gives the last token of a reference into the document, which must have the given prefix.
func (r reference) id(t *testing.T, prefix string) string {
	t.Helper()
	id, ok := strings.CutPrefix(r.Ref, prefix)
	require.True(t, ok, "%q is no reference below %s", r.Ref, prefix)
	return id
}

// stored is the address in its stream.
func (c channel) stored() string {
	if c.StoredAddress != "" {
		return c.StoredAddress
	}
	return c.Address
}

var parameter = regexp.MustCompile(`\{([a-z]+)\}`)

// pattern gives an address as a NATS filter.
func pattern(address string) string { return parameter.ReplaceAllString(address, "*") }

// sample gives an address with a value for each parameter.
func sample(address string) string {
	return strings.NewReplacer("{person}", "7", "{thread}", "12", "{turn}", "m1", "{key}", "k1",
		"{service}", "brain", "{replica}", "r1", "{agent}", "3", "{task}", "t1", "{attempt}", "1").Replace(address)
}

func (d *document) message(t *testing.T, c channel) (string, event) {
	t.Helper()
	require.Len(t, c.Messages, 1, "%s carries one kind of message", c.Address)
	for name, r := range c.Messages {
		require.Equal(t, name, r.id(t, "#/components/messages/"))
		m, ok := d.Components.Messages[name]
		require.True(t, ok, "no message %s", name)
		return name, m
	}
	panic("unreachable")
}

// headers gives the headers of a message: the properties, and those that are required.
func (d *document) headers(t *testing.T, m event) (properties map[string]schema, required []string) {
	t.Helper()
	properties = map[string]schema{}
	for _, part := range m.Headers.AllOf {
		if part.Ref != "" {
			part = d.Components.Schemas[reference{part.Ref}.id(t, "#/components/schemas/")]
		}
		for name, p := range part.Properties {
			if old, ok := properties[name]; ok && p.Description == "" {
				p.Description = old.Description
			}
			properties[name] = p
		}
		required = append(required, part.Required...)
	}
	return properties, required
}

func TestDocumentIsWhole(t *testing.T) {
	t.Parallel()
	d := load(t)
	require.Equal(t, "3.0.0", d.AsyncAPI)
	require.NotEmpty(t, d.Info.Title)
	require.NotEmpty(t, d.Info.Version)
	require.Equal(t, "application/json", d.DefaultContentType)

	var schemas struct{ Definitions map[string]json.RawMessage }
	data, err := os.ReadFile("schemas.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &schemas))

	addresses, usedMessages, usedParameters := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for id, c := range d.Channels {
		require.NotEmpty(t, c.Title, id)
		require.False(t, addresses[pattern(c.Address)], "%s: another channel has this address", id)
		addresses[pattern(c.Address)] = true
		require.Equal(t, c.Stream != "", c.Kept != "", "%s: x-stream and x-kept go together", id)

		var inAddress []string
		for _, m := range parameter.FindAllStringSubmatch(c.Address, -1) {
			inAddress = append(inAddress, m[1])
			require.Equal(t, m[1], c.Parameters[m[1]].id(t, "#/components/parameters/"), id)
		}
		require.ElementsMatch(t, inAddress, slices.Collect(maps.Keys(c.Parameters)), "%s: parameters of the address", id)
		for _, m := range parameter.FindAllStringSubmatch(c.stored(), -1) {
			require.NotEmpty(t, d.Components.Parameters[m[1]].Description, "%s: parameter %s", id, m[1])
			usedParameters[m[1]] = true
		}
		require.NotContains(t, parameter.ReplaceAllString(c.stored(), ""), "{", id)

		name, _ := d.message(t, c)
		usedMessages[name] = true
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(d.Components.Messages)), slices.Collect(maps.Keys(usedMessages)))
	require.ElementsMatch(t, slices.Collect(maps.Keys(d.Components.Parameters)), slices.Collect(maps.Keys(usedParameters)))

	for name, m := range d.Components.Messages {
		require.NotEmpty(t, m.Name, name)
		require.NotEmpty(t, m.Title, name)
		if m.Protobuf == "" {
			continue
		}
		short := strings.TrimPrefix(m.Protobuf, "butler.v1.")
		require.Equal(t, "./schemas.json#/definitions/"+short, m.Payload.Ref, name)
		require.Contains(t, schemas.Definitions, short)
		headers, required := d.headers(t, m)
		require.Equal(t, m.Name, headers["ce-type"].Const, "%s: its name is its event type", name)
		for _, h := range required {
			require.Contains(t, headers, h, name)
		}
	}

	senders := map[string]map[string]bool{}
	received := map[string]bool{}
	for id, o := range d.Operations {
		ch := o.Channel.id(t, "#/channels/")
		require.Contains(t, d.Channels, ch, id)
		require.Contains(t, []string{"gateway", "butler-brain", "agent-registry", "approval", "shell-runner", "agent", "compactor"}, o.Service, id)
		if o.Through != "" {
			require.Contains(t, d.Channels, o.Through, id)
		}
		switch o.Action {
		case "send":
			if senders[ch] == nil {
				senders[ch] = map[string]bool{}
			}
			senders[ch][o.Service] = true
			require.Empty(t, o.Consumer, id)
		case "receive":
			received[ch] = true
		default:
			t.Fatalf("%s: action %q", id, o.Action)
		}
	}
	// No truth stands on these: pieces of text that are repeated in the answer, and hints that are looked up.
	several := map[string]int{"delta": 2, "work": 4}
	for id := range d.Channels {
		require.Len(t, senders[id], max(1, several[id]), "channel %s has one writing service", id)
		if !slices.Contains([]string{"timer", "approvalTimer", "taskTimer"}, id) && d.Channels[id].Stream != "PARKED" { // the server fires the ones, people look at the others
			require.True(t, received[id], "nobody receives channel %s", id)
		}
	}
}

// The Markdown page of the subjects.
func TestSubjectsPage(t *testing.T) {
	t.Parallel()
	golden(t, "../docs/reference/subjects.md", subjectsPage(t, load(t)))
}

func subjectsPage(t *testing.T, d *document) string {
	t.Helper()
	var schemas struct {
		Definitions map[string]struct {
			Description string
			Properties  map[string]json.RawMessage
		}
	}
	data, err := os.ReadFile("schemas.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &schemas))

	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	subject := func(address string) string { return strings.NewReplacer("{", "<", "}", ">").Replace(address) }

	p("<!-- Generated from proto/asyncapi.yaml by make generate. Do not edit. -->")
	p("# Subjects\n")
	p("%s\n", d.Info.Description)
	p("For programs, the same is in [`proto/asyncapi.yaml`](../../proto/asyncapi.yaml) (AsyncAPI 3), with the payloads as JSON")
	p("Schema in [`proto/schemas.json`](../../proto/schemas.json).\n")

	p("| subject | stream | sent by | received by | kept |\n|---|---|---|---|---|")
	for _, id := range d.order {
		c := d.Channels[id]
		stream, kept := "plain NATS", "not stored"
		if c.Stream != "" {
			stream, kept = "`"+c.Stream+"`", c.Kept
		}
		p("| [`%s`](#%s) | %s | %s | %s | %s |", subject(c.Address), id, stream,
			services(t, d, id, "send"), services(t, d, id, "receive"), kept)
	}

	p("\n## What the parts of a subject mean\n")
	for _, name := range slices.Sorted(maps.Keys(d.Components.Parameters)) {
		p("- `<%s>`: %s", name, d.Components.Parameters[name].Description)
	}

	p("\n## Headers\n")
	p("| header | what |\n|---|---|")
	headers := d.Components.Schemas["event"]
	for _, name := range slices.Sorted(maps.Keys(headers.Properties)) {
		h := headers.Properties[name]
		text := h.Description
		if h.Const != "" {
			text = strings.TrimSpace("`" + h.Const + "` " + text)
		}
		if slices.Contains(headers.Required, name) {
			text += " Always there."
		}
		p("| `%s` | %s |", name, strings.TrimSpace(text))
	}

	p("\n## Channels")
	for _, id := range d.order {
		c := d.Channels[id]
		_, m := d.message(t, c)
		p("\n<a id=\"%s\"></a>\n### %s\n", id, c.Title)
		p("- published as `%s`", subject(c.Address))
		if c.StoredAddress != "" {
			p("- stored as `%s`", subject(c.StoredAddress))
		}
		if m.Protobuf != "" {
			p("- event type `%s`, payload [`%s`](#%s)", m.Name, m.Protobuf, strings.TrimPrefix(m.Protobuf, "butler.v1."))
		} else {
			p("- payload: %s", m.Description)
		}
		for _, line := range consumers(t, d, id) {
			p("- %s", line)
		}
		if c.Description != "" {
			p("\n%s", c.Description)
		}
	}

	p("\n## Payloads")
	for _, name := range slices.Sorted(maps.Keys(schemas.Definitions)) {
		def := schemas.Definitions[name]
		p("\n<a id=\"%s\"></a>\n### %s\n\n%s\n", name, name, def.Description)
		p("| field | type | what |\n|---|---|---|")
		for _, field := range slices.Sorted(maps.Keys(def.Properties)) {
			typ, text := fieldType(t, def.Properties[field])
			p("| `%s` | %s | %s |", field, typ, text)
		}
	}
	return b.String()
}

func services(t *testing.T, d *document, ch, action string) string {
	t.Helper()
	names := map[string]bool{}
	for _, o := range d.Operations {
		if o.Channel.id(t, "#/channels/") == ch && o.Action == action {
			names[o.Service] = true
		}
	}
	if len(names) == 0 {
		return "–"
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ", ")
}

func consumers(t *testing.T, d *document, ch string) []string {
	t.Helper()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(d.Operations)) {
		if o := d.Operations[id]; o.Consumer != "" && o.Channel.id(t, "#/channels/") == ch {
			out = append(out, fmt.Sprintf("durable consumer of %s: `%s`", o.Service, o.Consumer))
		}
	}
	return out
}

// fieldType gives a property's type as a reader says it.
func fieldType(t *testing.T, raw json.RawMessage) (typ, text string) {
	t.Helper()
	var s struct {
		Type        any
		Description string
		Format      string
		Ref         string            `json:"$ref"`
		AllOf       []json.RawMessage `json:"allOf"`
		Items       json.RawMessage
	}
	require.NoError(t, json.Unmarshal(raw, &s))
	switch {
	case s.Ref != "":
		name := strings.TrimPrefix(s.Ref, "#/definitions/")
		return fmt.Sprintf("[%s](#%s)", name, name), s.Description
	case len(s.AllOf) > 0:
		typ, _ = fieldType(t, s.AllOf[0])
		return typ, s.Description
	case s.Items != nil:
		item, _ := fieldType(t, s.Items)
		return "list of " + item, s.Description
	case s.Format == "date-time":
		return "time (RFC 3339)", s.Description
	case s.Type == nil:
		return "any JSON", s.Description
	}
	if one, ok := s.Type.(string); ok {
		return one, s.Description
	}
	return "whole number, as a string", s.Description
}
