package contracts

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

// schemas.json has the payloads of asyncapi.yaml as JSON Schema, made from the .proto files with their comments.
func TestSchemasAreFresh(t *testing.T) {
	t.Parallel()
	doc := load(t)
	definitions := map[string]any{}
	for _, m := range doc.Components.Messages {
		if m.Protobuf != "" {
			define(definitions, message(t, m.Protobuf))
		}
	}
	out, err := json.MarshalIndent(map[string]any{
		"$schema":     "http://json-schema.org/draft-07/schema#",
		"$comment":    "Generated from the .proto files by make generate. Do not edit.",
		"definitions": definitions,
	}, "", "  ")
	require.NoError(t, err)
	golden(t, "schemas.json", string(out)+"\n")
}

var descriptors struct {
	once  sync.Once
	files interface {
		FindDescriptorByName(protoreflect.FullName) (protoreflect.Descriptor, error)
		RangeFilesByPackage(protoreflect.FullName, func(protoreflect.FileDescriptor) bool)
	}
}

// message finds a message with the comments of its source, which the generated Go does not have.
func message(t *testing.T, name string) protoreflect.MessageDescriptor {
	t.Helper()
	loadDescriptors(t)
	d, err := descriptors.files.FindDescriptorByName(protoreflect.FullName(name))
	require.NoError(t, err, "no message is called %s", name)
	return d.(protoreflect.MessageDescriptor)
}

func loadDescriptors(t *testing.T) {
	t.Helper()
	descriptors.once.Do(func() {
		set := &descriptorpb.FileDescriptorSet{}
		require.NoError(t, proto.Unmarshal(buf(t, "build", "-o", "-#format=binpb"), set))
		files, err := protodesc.NewFiles(set)
		require.NoError(t, err)
		descriptors.files = files
	})
	require.NotNil(t, descriptors.files, "the messages could not be read")
}

func comment(d protoreflect.Descriptor) string {
	text := d.ParentFile().SourceLocations().ByDescriptor(d).LeadingComments
	return strings.Join(strings.Fields(text), " ")
}

// define adds md, and what it refers to, in protobuf's JSON form.
func define(definitions map[string]any, md protoreflect.MessageDescriptor) {
	name := string(md.Name())
	if _, done := definitions[name]; done {
		return
	}
	properties := map[string]any{}
	definitions[name] = map[string]any{
		"type": "object", "description": comment(md), "properties": properties,
	}
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		of := fd
		if fd.IsMap() {
			of = fd.MapValue()
		}
		schema := value(definitions, of)
		if fd.IsMap() {
			schema = map[string]any{"type": "object", "additionalProperties": schema}
		}
		if fd.IsList() {
			schema = map[string]any{"type": "array", "items": schema}
		}
		if _, ref := schema["$ref"]; ref { // draft 07 ignores what stands beside a $ref
			schema = map[string]any{"allOf": []any{schema}}
		}
		schema["description"] = comment(fd)
		properties[string(fd.Name())] = schema
	}
}

func value(definitions map[string]any, fd protoreflect.FieldDescriptor) map[string]any {
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return map[string]any{"type": "boolean"}
	case protoreflect.StringKind:
		return map[string]any{"type": "string"}
	case protoreflect.Int32Kind, protoreflect.Uint32Kind:
		return map[string]any{"type": "integer"}
	case protoreflect.Int64Kind, protoreflect.Uint64Kind:
		// Written as a string, since JavaScript's numbers end at 2^53; read as either.
		return map[string]any{"type": []any{"string", "integer"}, "pattern": "^-?[0-9]+$"}
	case protoreflect.BytesKind:
		return map[string]any{"type": "string", "contentEncoding": "base64"}
	case protoreflect.DoubleKind, protoreflect.FloatKind:
		return map[string]any{"type": "number"}
	case protoreflect.MessageKind:
		switch fd.Message().FullName() {
		case "google.protobuf.Timestamp":
			return map[string]any{"type": "string", "format": "date-time"}
		case "google.protobuf.Value":
			return map[string]any{} // any JSON
		}
		define(definitions, fd.Message())
		return map[string]any{"$ref": "#/definitions/" + string(fd.Message().Name())}
	}
	panic("schemas: no JSON form is known for " + string(fd.FullName()) + "; add it here")
}

// The comment of an event's message names its subject; both sides must agree.
func TestCommentsNameTheSubjects(t *testing.T) {
	t.Parallel()
	doc := load(t)
	loadDescriptors(t)
	said := map[string][]string{}
	descriptors.files.RangeFilesByPackage("butler.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Messages().Len() {
			md := f.Messages().Get(i)
			if s := subjectInComment(comment(md)); s != "" {
				said[s] = append(said[s], string(md.FullName()))
			}
		}
		return true
	})
	for id, c := range doc.Channels {
		if c.Stream == "KV_PRESENCE" || slices.Contains([]string{"timer", "parked", "approvalTimer", "parkedApproval", "taskTimer", "parkedTask", "parkedReport"}, id) {
			continue // no message, or that of another channel
		}
		var messages []string
		for name := range c.Messages {
			messages = append(messages, doc.Components.Messages[name].Protobuf)
		}
		address := strings.NewReplacer("{", "<", "}", ">").Replace(c.Address)
		require.Equal(t, messages, said[address], "the comment of the message of channel %s must name %s", id, address)
		delete(said, address)
	}
	require.Empty(t, said, "messages name subjects that asyncapi.yaml does not have")
}

func subjectInComment(text string) string {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" ,:;()", r) })
	i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "butler.") })
	if i < 0 {
		return ""
	}
	return strings.TrimSuffix(words[i], ".")
}
