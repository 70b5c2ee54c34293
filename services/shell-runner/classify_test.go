package shell

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// installed are words that a well-equipped machine's shell resolves, those that are English words above all.
var installed = set(`ls cd pwd whoami id date uptime who w top htop df du free ps kill pkill killall cat head tail less more grep find xargs sort
	uniq wc time watch open touch mkdir rmdir rm cp mv ln chmod chown tar unzip zip gzip git docker kubectl systemctl sudo apt service
	journalctl npm yarn pip go cargo make python python3 node bash sh vim vi nano man which type echo export source . alias unset set
	env printenv history clear exit jobs fg bg sleep nohup seq curl wget ping ssh scp rsync dig nslookup ip ss netstat lsof nginx mysql
	psql redis-cli sqlite3 crontab hostname uname lscpu lsblk test [ for while if then do done else fi case in select until function
	awk sed cut tr diff file stat md5sum last install split tee cal bc reboot terraform helm gh jq yes help look true false read
	write join fold expand factor link host mail users groups reset wait continue break return local let eval exec trap units nice
	paste wall talk shred truncate sync strings comm login logout mount umount word at batch say run-parts tac nl rev printf cmp
	column base64 timeout command builtin declare readonly umask ulimit pushd popd dirs tree dd mkfs fdisk shutdown poweroff halt
	info apropos whatis locate cc gcc ld ar nm size perl ruby php java javac rustc screen tmux script logger mesg getent passwd su
	ll ./run.sh ./build.sh ./server ./install.sh /usr/bin/env /usr/bin/ls time { ( ! import display compare convert identify
	ex view ed pr od lp on`)

type message struct{ label, text string }

func messages(t testing.TB, file string) []message {
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	var out []message
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if label, text, ok := strings.Cut(lines.Text(), "\t"); ok && !strings.HasPrefix(label, "#") {
			out = append(out, message{label, text})
		}
	}
	require.NoError(t, lines.Err())
	return out
}

// What is a command line and what is talk, over a labelled table. Taking a command for talk costs a question to the model;
// taking talk for a command could run it.
func TestCommandOrTalk(t *testing.T) {
	t.Parallel()
	resolve := func(word string) bool { return installed[word] }
	all := messages(t, "testdata/messages.tsv")
	require.Greater(t, len(all), 250)
	wrong := 0
	for _, m := range all {
		got := "chat"
		if classify(m.text, resolve) {
			got = "command"
		}
		if got == m.label {
			continue
		}
		wrong++
		if got == "command" {
			t.Errorf("talk was taken for a command: %s", m.text)
		} else {
			t.Logf("a command was taken for talk: %s", m.text)
		}
	}
	t.Logf("%d of %d right", len(all)-wrong, len(all))
	require.LessOrEqual(t, wrong, len(all)*2/100)
}

// No text makes the look at it fail or take long.
func FuzzClassify(f *testing.F) {
	for _, m := range messages(f, "testdata/messages.tsv") {
		f.Add(m.text)
	}
	f.Add("$(((((((((((((((((((((")
	f.Add("a=(((" + strings.Repeat("{", 100))
	f.Fuzz(func(_ *testing.T, text string) { classify(text, func(string) bool { return true }) })
}
