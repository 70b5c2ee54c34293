package registry

import (
	"encoding/json"
	"errors"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/butlerhub/butler/pkg/fault"
)

const (
	// maxSchema bounds a capability's schema, in bytes.
	maxSchema = 32 << 10
	// schemasKept bounds how many compiled schemas are kept.
	schemasKept = 500
	// maxComplaint bounds what is said of an input that does not fit, in bytes.
	maxComplaint = 1000
)

// schemas compiles the schemas of capabilities and remembers them.
type schemas struct {
	mu       sync.Mutex
	compiled map[string]*jsonschema.Schema
}

// offline refuses to fetch what a schema refers to.
type offline struct{}

func (offline) Load(string) (any, error) {
	return nil, errors.New("a schema can only refer to itself")
}

// compile reads a schema; fault.Invalid when it is none.
func (s *schemas) compile(text string) (*jsonschema.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.compiled[text]; ok {
		return c, nil
	}
	if len(text) > maxSchema {
		return nil, fault.New(fault.Invalid, "the schema of a capability has at most %d KiB", maxSchema>>10)
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the schema of a capability is no JSON")
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(offline{})
	const name = "capability:input"
	if err := c.AddResource(name, doc); err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the schema of a capability is no JSON Schema")
	}
	compiled, err := c.Compile(name)
	if err != nil {
		return nil, fault.Wrap(err, fault.Invalid, "the schema of a capability is no JSON Schema: %s", shortened(err.Error()))
	}
	if s.compiled == nil || len(s.compiled) >= schemasKept {
		s.compiled = map[string]*jsonschema.Schema{}
	}
	s.compiled[text] = compiled
	return compiled, nil
}

// check says whether an input, as JSON, fits a schema.
func (s *schemas) check(schema string, input []byte) error {
	compiled, err := s.compile(schema)
	if err != nil {
		return err
	}
	if len(input) == 0 {
		input = []byte("null")
	}
	if !json.Valid(input) {
		return fault.New(fault.Invalid, "the input is no JSON")
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(input)))
	if err != nil {
		return fault.Wrap(err, fault.Invalid, "the input is no JSON")
	}
	if err := compiled.Validate(value); err != nil {
		return fault.New(fault.Invalid, "the input does not fit the capability's schema: %s", shortened(err.Error()))
	}
	return nil
}

func shortened(text string) string {
	if len(text) > maxComplaint {
		text = strings.ToValidUTF8(text[:maxComplaint], "") + " …"
	}
	return text
}
