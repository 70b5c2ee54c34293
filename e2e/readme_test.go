package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var named = regexp.MustCompile("`(?:([a-z/-]+):)?(Test[A-Za-z0-9]+)`")

// The tests that README.md names exist, and it names all of this folder.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	source := func(folder string) string {
		if _, ok := sources[folder]; !ok {
			files, _ := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
			var all strings.Builder
			for _, file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(data)
			}
			sources[folder] = all.String()
		}
		return sources[folder]
	}
	told := map[string]bool{}
	for _, m := range named.FindAllStringSubmatch(string(text), -1) {
		folder := m[1]
		if folder == "" {
			folder = "e2e"
			told[m[2]] = true
		}
		if !strings.Contains(source(folder), "func "+m[2]+"(") {
			t.Errorf("README.md names %s of %s, which does not exist", m[2], folder)
		}
	}
	for _, m := range regexp.MustCompile(`func (Test[A-Z]\w+)\(t \*testing`).FindAllStringSubmatch(source("e2e"), -1) {
		if !told[m[1]] && m[1] != "TestChecker" {
			t.Errorf("README.md does not say what %s is for", m[1])
		}
	}
}
