package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The settings file of Butler-Shell, as published, loads as it is.
func TestThePublishedFileLoads(t *testing.T) {
	t.Parallel()
	s, warnings, err := Load(Options{File: "testdata/butler-shell.yaml", Environ: []string{"HOME=/home/b"}})
	require.NoError(t, err)
	require.Equal(t, time.Hour, s.Shell.IdleTimeout)
	require.Equal(t, 1, s.Shell.MaxPerUser)
	require.Equal(t, 100, s.Shell.MaxTotal)
	require.True(t, s.Shell.GuardEnabled)
	require.Equal(t, []string{"rm -rf", "sudo", "chmod 777"}, s.Shell.DangerPatterns)
	require.Equal(t, []string{"12345678", "87654321"}, s.Shell.AllowedUsers)
	require.Equal(t, 300*time.Second, s.Approval.Timeout)
	require.Equal(t, slog.LevelInfo, s.Log.Level)
	for key, line := range map[string]string{
		"session.idle_timeout": "4", "approval.timeout": "10", "security.allowed_users": "18", "log.level": "22",
	} {
		require.Equal(t, Origin{FromFile, "testdata/butler-shell.yaml:" + line}, s.Origin(key), key)
	}
	require.Len(t, warnings, 2, "%v", warnings)
	require.Contains(t, string(warnings[0]), "logging.path has no effect")
	require.Contains(t, string(warnings[1]), "napcat has no effect", "told once")
}

func TestPublishedNamesAndOwnOnes(t *testing.T) {
	t.Parallel()
	load := func(text string) (Settings, error) {
		file := filepath.Join(t.TempDir(), "c.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		s, _, err := Load(Options{File: file, Environ: []string{"HOME=/home/b"}})
		return s, err
	}
	s, err := load("butler:\n  guardrail:\n    approval_timeout: 60\nshell:\n  host: web\n")
	require.NoError(t, err)
	require.Equal(t, time.Minute, s.Approval.Timeout)
	require.Equal(t, "web", s.Shell.Host)
	s, err = load("butler:\n  http:\n    addr: 127.0.0.1:1\n")
	require.NoError(t, err, "the section takes every setting")
	require.Equal(t, "127.0.0.1:1", s.HTTP.Addr)

	for text, want := range map[string]string{
		"butler:\n  guardrail:\n    approval_timeout: 60\napproval:\n  timeout: 60\n": "set twice, first in line 3",
		"butler:\n  session:\n    idle_timeout: 60\nsession:\n  idle_timeout: 60\n":   "set twice, first in line 3",
		"butler:\n  session:\n    idle: 60\n":                                         "butler.session.idle is not a setting",
		"butler:\n  butler:\n    session:\n      idle_timeout: 60\n":                  "butler.butler is not a setting",
		"butler: 5\n":                         "is a section",
		"logging:\n  level: info\n":           "logging is not a setting",
		"butler:\n  napcat:\n    secret: x\n": "butler.napcat.secret is not a setting",
	} {
		_, err := load(text)
		require.ErrorContains(t, err, want, text)
	}
}
