package config

import (
	"strconv"
	"strings"
)

// clip makes a name from outside printable: bounded, and quoted unless it is plain.
func clip(name string) string {
	for _, r := range name {
		if r <= ' ' || r >= 0x7f || r == '"' {
			return quoted(name)
		}
	}
	if len(name) > 80 {
		return name[:80] + "…"
	}
	return name
}

// nearest gives the known name that was probably meant, or "". A name whose last part is a known one's counts as near
// (addr for http.addr is ambiguous, base_url for model.base_url is not).
func nearest(name string, known []string) string {
	if len(name) > 80 {
		return ""
	}
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return best
	}
	last := name[strings.LastIndexByte(name, '.')+1:]
	for _, k := range known {
		if strings.HasSuffix(k, "."+last) {
			if best != "" {
				return ""
			}
			best = k
		}
	}
	return best
}

// distance is Levenshtein's: how many insertions, deletions and substitutions of bytes turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
		}
	}
	return row[len(b)]
}

func quoted(text string) string {
	if r := []rune(text); len(r) > 40 {
		text = string(r[:40]) + "…"
	}
	return strconv.Quote(text)
}
