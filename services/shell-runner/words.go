package shell

import "strings"

// The words that tell a command line from a sentence. A word that is missing here makes a message talk, never a command.

func set(words string) map[string]bool {
	out := map[string]bool{}
	for w := range strings.FieldsSeq(words) {
		out[w] = true
	}
	return out
}

// stopWords stand in sentences and hardly ever alone as an argument.
var stopWords = set(`the an is are was were be been being am me my mine you your yours it its this that these those what why how
	when where whom whose please can could should would will shall may might must we us our they them their he she him his her of
	for with about and or not but if into there do does did doing has have had having so then than because at as by from to in on
	here now again today tomorrow yesterday everything nothing something anything everyone anyone somebody nobody some any every
	each both few many much more most very too just only also still already always never ever really quite i yes no ok okay thanks
	thank hello hi explained explain explains tutorial usage meaning means command commands example examples syntax vs versus works
	working work worked fails fail failing failed broken keeps keep kept won't don't doesn't can't isn't shows say says said
	better faster slow fast down required dangerous weird great good bad nice like want need needs help off after before while which who out up over
	sense sure time memory space lesson files file folder folders directory directories contents all old new first last next`)

// chineseProse are pieces of Chinese sentences.
var chineseProse = []string{
	"怎么", "什么", "为何", "为啥", "吗", "呢", "吧", "啊", "请", "帮", "如何", "是", "能", "可以", "命令", "一下", "这个", "那个", "哪", "多少", "几", "有没有", "掉", "看",
	"我", "你", "他", "她", "它", "谁", "失败", "报错", "不", "没", "会", "用法", "区别", "教程", "解释", "告诉", "把", "被", "给", "让", "和", "还", "应该", "了", "的", "时候",
	"创建", "删除", "到", "权限", "切换", "打开", "显示", "列出", "运行", "执行", "输出", "大小", "位置", "路径", "作用", "参数", "选项", "例子", "示例", "技巧", "版本", "所有", "全部",
	"占用", "进程", "最大", "需要", "想", "要", "在哪", "编译", "安装", "连", "退出", "解压", "返回", "重启", "启动", "停", "查", "问题出", "意思",
}

// reserved are words of bash's grammar that resolve as keywords and are asked about in prose.
var reserved = set(`if then else elif fi for while until do done case esac in select function time coproc`)

// prefixes run the command that follows.
var prefixes = set(`sudo time nohup nice ionice env command exec builtin watch xargs timeout setsid stdbuf doas strace ltrace chronic
	unbuffer caffeinate parallel flock`)

// alone are words that, all by themselves, are more likely said than typed.
var alone = set(`yes no halt shutdown poweroff help test time find kill open watch install look more less cat sort true false continue break return wait
	let read select if for while until do done then else fi in case esac function man type which who's look write join split cut
	paste fold expand factor link unlink file host mail users groups last stat touch head tail tee set source export unset local
	declare eval exec trap shift info units truncate shred sync strings say print talk word words dict apply reject accept
	cancel disable enable login at batch banner compress compare convert display import identify animate run start stop check
	service sleep nice size comm tr wall mesg rename replace locate perform process update upgrade status next list show say
	suspend logout umask getopts caller command builtin coproc times logger script record play fetch get put post bind fc
	echo printf xargs grep sed awk cp mv rm ln mkdir rmdir chmod chown tar zip unzip ssh scp curl wget ping dig alias git docker
	sh on off test. nice. clear. ok mount`)

// filters read what is piped into them, so they can stand there alone.
var filters = set(`sort less more cat head tail wc uniq jq tac nl rev sh bash xargs tee base64 md5sum sha256sum column strings grep cut tr
	fold expand paste file gzip gunzip zcat xxd hexdump od pbcopy python3 python node`)

// unlikely are commands whose names are no English words, or hardly begin a sentence: plain arguments are names then.
var unlikely = set(`ls ll la dir cd pushd popd mkdir rmdir rm cp mv ln grep egrep fgrep rg ag sed awk gawk vim nvim vi nano emacs df du ps
	pgrep chmod chown chgrp tar unzip zip gzip gunzip bzip2 xz wc ssh scp rsync sftp curl wget ping traceroute dig nslookup whois
	echo printf md5sum sha1sum sha256sum ldd nproc lsof strace umount mkfs fsck lsblk useradd userdel usermod groupadd passwd
	chsh su killall pkill pidof tree bat fd jq yq xxd hexdump basename dirname realpath readlink mktemp id uname hostname
	nginx-ctl mysql psql sqlite3 redis-cli mongosh rustc gcc g++ clang javac java ruby perl php lua unalias zcat zgrep diff cmp`)

// takesFiles are commands whose arguments may have Chinese names.
var takesFiles = set(`ls ll la dir cd pushd cat less more head tail mkdir rmdir rm cp mv ln touch vim nvim vi nano emacs grep egrep rg ag echo
	printf tar unzip zip gzip du chmod chown stat file wc open xdg-open tree bat sort uniq diff find source bash sh python python3
	node md5sum sha256sum scp rsync realpath`)

// targets are what Makefiles commonly have.
var targets = set(`all build test tests install uninstall clean distclean run check lint fmt format vet dev start stop deploy release
	docs doc generate bench image images docker push dist package watch serve help coverage cover debug setup migrate proto up down
	e2e integration unit tidy mocks vendor bootstrap menuconfig defconfig modules`)

// topics follow the name of a program when it is talked about: "git merge conflicts", "ssh key". To commands about files they
// can be names of files.
var topics = set(`conflict conflicts error errors message messages history hash cache location speed size naming convention conventions
	strategy workflow tips tricks basics practices shortcuts configuration setup problem problems issue issues timeout timeouts
	refused connection connections key keys policy permission permissions performance limit limits version versions format output
	results docs documentation cheatsheet alias aliases hook hooks rate crashes crash hangs stuck slowly backup backups alternatives
	alternative comparison difference differences security login password passwords port ports memory usage warning warnings logs
	tutorial guide manual book course interview questions question review best rules syntax internals architecture network`)

// editors are talked about as much as they are used.
var editors = set(`vim nvim vi nano emacs`)

// needsFlag are commands whose names are requests too: "import data.csv", "kill app.py". Only options make them commands.
var needsFlag = set(`read import write join link display compare check run start stop process update record play print apply mail script
	install test look watch expand split convert fold paste locate look find rename replace perform talk select let cancel accept reject
	factor wall login show list fetch get put post bind say`)

// twoNames are commands whose two plain arguments are a source and a target.
var twoNames = set(`cp mv ln diff cmp rsync scp`)

// groups are subcommands that have subcommands, or take a kind and a name.
var groups = set(`network volume image container system context get describe delete edit create logs exec push pull fetch remote worktree
	submodule stash config rollout run scale cp tag pr issue repo s3 upgrade install show con connection dev set add enable`)

// greetings are what people have echo say.
var greetings = set(`hi hello world yes no ok done test foo bar ping pong`)

// fileSubcommands take files or addresses where a sentence has words: "go get some coffee".
var fileSubcommands = map[string]map[string]bool{"go": set(`get install run build test`), "cargo": set(`new init add`), "npm": set(`start`)}

// serviceWords end a call of service.
var serviceWords = set(`status start stop restart reload force-reload`)

// subcommands are what may stand after a program's name; a program that is here takes nothing else there but flags and
// paths.
var subcommands = map[string]map[string]bool{
	"git": set(`add am apply archive bisect blame branch bundle checkout cherry-pick clean clone commit config describe diff fetch
		format-patch gc grep init log ls-files ls-remote ls-tree merge mv notes pull push range-diff rebase reflog remote reset
		restore revert rev-parse rm shortlog show stash status submodule switch tag worktree lfs cat-file fsck whatchanged`),
	"docker": dockerWords, "podman": dockerWords, "nerdctl": dockerWords,
	"docker-compose": set(`up down ps logs build pull push restart start stop exec run config top kill rm images`),
	"kubectl": set(`get describe logs apply delete create edit exec scale rollout port-forward top config cluster-info explain expose run
		label annotate cp drain cordon uncordon taint patch replace wait api-resources version diff auth debug`),
	"helm":       set(`install upgrade uninstall list ls status repo search show template history rollback get create lint package pull push dependency version`),
	"systemctl":  set(`status start stop restart reload enable disable mask unmask is-active is-enabled list-units list-unit-files daemon-reload cat show edit kill reset-failed list-timers --failed`),
	"journalctl": {},
	"apt":        aptWords, "apt-get": aptWords, "aptitude": aptWords, "dnf": aptWords, "yum": aptWords, "apk": set(`add del update upgrade search info list fetch fix`), "brew": aptWords,
	"apt-cache": set(`search show policy depends rdepends showpkg madison stats`), "snap": aptWords, "pacman": {},
	"npm": nodeWords, "pnpm": nodeWords, "yarn": nodeWords, "bun": nodeWords, "npx": {}, "deno": set(`run test fmt lint task install check`),
	"pip": pipWords, "pip3": pipWords, "uv": set(`pip venv run sync add remove lock tool init build publish python`), "poetry": set(`install add remove run update lock build publish shell show init`), "pipenv": set(`install run shell lock sync update graph`), "conda": set(`install create activate deactivate list env update remove search info init`),
	"go":     set(`build test run vet fmt mod get install version env list generate clean doc tool work fix bug telemetry`),
	"cargo":  set(`build test run check clippy fmt doc new init add remove update install publish bench clean tree search`),
	"rustup": set(`update default show toolchain target component self doc override`), "mvn": set(`clean compile test package install verify deploy site validate dependency:tree`),
	"gradle": set(`build test clean run tasks assemble check dependencies wrapper`), "dotnet": set(`build test run restore publish new add clean pack tool watch nuget`),
	"terraform": set(`init plan apply destroy validate fmt output show state import refresh workspace providers console graph taint version`),
	"ip":        set(`a addr address l link r route n neigh rule netns s maddr tunnel xfrm`), "nmcli": set(`con connection dev device general radio networking`),
	"ufw": set(`status allow deny enable disable delete reload reset limit reject`), "gh": set(`pr issue repo auth run workflow release gist api browse search status`),
	"aws":    set(`s3 s3api ec2 iam sts lambda ecs eks rds logs cloudformation configure dynamodb sqs sns route53 ssm secretsmanager`),
	"gcloud": set(`compute auth config projects container run functions sql storage iam logging services app`), "az": set(`login vm group account aks acr storage network webapp`),
	"tmux": set(`ls new new-session attach a kill-session kill-server list-sessions detach send-keys`), "screen": {}, "crontab": {},
	"redis-cli": set(`ping info keys get set del monitor dbsize ttl flushall flushdb scan hgetall lrange`),
	"pm2":       set(`list ls start stop restart reload delete logs monit save status show startup`), "supervisorctl": set(`status start stop restart reload update tail reread`),
	"nats": set(`sub pub stream consumer kv server account bench context req reply rtt events obj`), "butler": set(`up chat sessions approvals login logout users tokens password gateway brain registry approval shell-runner doctor config guard audit replay nats-config version help completion`),
	"python": {}, "python2": {}, "python3": {}, "node": {}, "bash": {}, "sh": {}, "zsh": {}, "fish": {}, "ipython": {}, "irb": {},
	"nginx": {}, "mysqldump": {}, "pg_dump": {}, "apachectl": set(`start stop restart graceful configtest status fullstatus`),
}

var (
	dockerWords = set(`attach build buildx commit compose container context cp create diff events exec export history image images import info
		inspect kill load login logout logs network node pause plugin port ps pull push rename restart rm rmi run save search secret service
		stack start stats stop swarm system tag top unpause update version volume wait`)
	aptWords  = set(`update upgrade install remove purge autoremove search show list info policy clean full-upgrade dist-upgrade reinstall uninstall download check outdated doctor services cleanup tap`)
	nodeWords = set(`install i ci run test start stop build add remove uninstall update outdated audit publish pack link init create exec list ls view
		info version login logout whoami config cache prune dedupe why lint dev up upgrade dlx`)
	pipWords = set(`install uninstall list freeze show search download wheel check config cache index`)
)
