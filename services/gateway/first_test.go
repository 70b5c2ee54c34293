package gateway

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/fault"
)

// The password of the first admin is known to nobody but this file: it must be there whenever the admin is.
func TestTheFirstPasswordIsNotLost(t *testing.T) {
	t.Parallel()
	lost := fault.New(fault.Unavailable, "the connection broke during the commit")
	wrong := fault.New(fault.Unauthenticated, "the name or the password is wrong")
	for name, c := range map[string]struct {
		created      bool
		err, verify  error
		shown, kept  bool
		wantsAnError bool
	}{
		"made":                            {created: true, shown: true, kept: true},
		"another replica was first":       {verify: wrong},
		"refused":                         {err: fault.New(fault.Invalid, "no name"), verify: wrong, wantsAnError: true},
		"the commit's outcome was lost":   {err: lost, shown: true, kept: true},
		"a second try found it done":      {shown: true, kept: true},
		"the outcome stays unknown":       {err: lost, verify: lost, kept: true, wantsAnError: true},
		"a second try cannot be verified": {verify: errors.New("no database"), kept: true, wantsAnError: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "new", "first-password")
			var tried string
			got, err := generateFirst(t.Context(), file, "admin",
				func(password string) (bool, error) { tried = password; return c.created, c.err },
				func(_ context.Context, password string) error {
					require.Equal(t, tried, password)
					return c.verify
				})
			require.Equal(t, c.wantsAnError, err != nil, "%v", err)
			require.Equal(t, c.shown, got != "")
			files, err := os.ReadDir(filepath.Dir(file))
			require.NoError(t, err)
			if !c.kept {
				require.Empty(t, files)
				return
			}
			require.Len(t, files, 1)
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, "name: admin\npassword: "+tried+"\n", string(data))
		})
	}
}
