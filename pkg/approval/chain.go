package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	butlerv1 "github.com/butlerhub/butler/proto/butler/v1"
)

// EventDigest gives the SHA-256 in hex over what makes an event the one it is, each part with its length before it.
func EventDigest(subject, id, typ string, data []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(subject), []byte(id), []byte(typ), data} {
		_, _ = fmt.Fprintf(h, "%d:", len(part))
		_, _ = h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// LinkHash gives the hash of a link of the audit chain: SHA-256 over its position, its items and the hash before, as JSON
// with a fixed order of fields. Whoever changes, drops or moves a link changes the hash of every later one.
func LinkHash(r *butlerv1.AuditRecord) string {
	type item struct {
		Kind     string `json:"kind"`
		Stream   string `json:"stream"`
		Seq      uint64 `json:"seq"`
		Subject  string `json:"subject"`
		Digest   string `json:"digest"`
		At       string `json:"at"`
		ActorID  int64  `json:"actor_id"`
		Actor    string `json:"actor"`
		Role     string `json:"role"`
		Approval string `json:"approval_id"`
		Summary  string `json:"summary"`
	}
	doc := struct {
		N        int64  `json:"n"`
		Items    []item `json:"items"`
		Previous string `json:"previous"`
		Covered  uint64 `json:"covered"`
	}{N: r.GetN(), Previous: r.GetPrevious(), Covered: r.GetCovered()}
	for _, i := range r.GetItems() {
		doc.Items = append(doc.Items, item{
			i.GetKind(), i.GetStream(), i.GetSeq(), i.GetSubject(), i.GetDigest(), i.GetAt().AsTime().UTC().Format(time.RFC3339Nano),
			i.GetActor().GetId(), i.GetActor().GetName(), i.GetActor().GetRole(), i.GetApprovalId(), i.GetSummary(),
		})
	}
	data, _ := json.Marshal(doc) // strings and numbers
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
