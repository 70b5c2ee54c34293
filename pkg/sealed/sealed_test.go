package sealed_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/butlerhub/butler/pkg/sealed"
)

func TestOnlyTheKeyOpens(t *testing.T) {
	t.Parallel()
	key, err := sealed.NewKey()
	require.NoError(t, err)
	for _, text := range []string{"", "hunter2", "密码 一", string(bytes.Repeat([]byte("x"), 16<<10))} {
		box, err := sealed.Seal(text, key.Public())
		require.NoError(t, err)
		require.False(t, len(text) > 3 && bytes.Contains(box, []byte(text)))
		got, err := key.Open(box)
		require.NoError(t, err)
		require.Equal(t, text, got)
		other, err := sealed.NewKey()
		require.NoError(t, err)
		_, err = other.Open(box)
		require.Error(t, err)
		box[len(box)-1] ^= 1
		_, err = key.Open(box)
		require.Error(t, err)
	}
	_, err = sealed.Seal("x", nil)
	require.Error(t, err)
	_, err = key.Open(nil)
	require.Error(t, err)
}
