"""Which commands read, and with which options they do nothing else: lists, of which `readers` makes rules.

Left out on purpose are options that write or run something: sort -o and --compress-program, rg --pre, fd -x,
git grep -O, man -P, tree -o, date -s, file -C, lsof -D.
"""

from __future__ import annotations

from satchel.agent.shell.words import names

# None of their options, in GNU's, BSD's or macOS's version, writes a file or runs a program.
ANYHOW = """
ls cat head tail wc grep egrep fgrep cut tr nl tac rev paste join comm cmp diff fold fmt expand unexpand
column pr
od hexdump hd stat du df pwd whoami id groups users who w last cal ncal uname uptime nproc free lscpu
lsblk lsmod
pstree ps printenv echo basename dirname realpath readlink seq factor numfmt expr md5sum sha1sum
sha224sum sha256sum
sha384sum sha512sum b2sum shasum md5 cksum sum true false : sleep which type whereis locate mdfind
sw_vers vm_stat
getconf locale tty logname yes eza exa lsb_release pbpaste
"""

# name: the options that only read, and how many operands it may have (None: any).
WITH_OPTIONS: dict[str, tuple[str, int | None]] = {
    "sort": (
        "-bdfghiMnRrVcCmsuz -k: -t: -S: --reverse --numeric-sort --human-numeric-sort --unique --key: "
        "--field-separator: --ignore-case --version-sort --stable --check --zero-terminated "
        "--general-numeric-sort "
        "--month-sort --random-sort --ignore-leading-blanks --dictionary-order",
        None,
    ),
    "uniq": (
        "-cdDuiz -f: -s: -w: --count --repeated --unique --ignore-case --skip-fields: --skip-chars: "
        "--check-chars: --zero-terminated",
        1,
    ),
    "shuf": ("-erz -n: -i: --echo --repeat --head-count: --input-range: --zero-terminated", None),
    "tree": (
        "-adflxiqNQpugshDFCnvtcUrJX -L: -P: -I: --noreport --dirsfirst --du --prune --gitignore --si "
        "--filelimit: --charset: --matchdirs --ignore-case",
        None,
    ),
    "rg": (
        "-inclLvwxFPSsUHINoqu0. -A: -B: -C: -e: -g: -t: -T: -m: -r: -d: -j: -M: --ignore-case "
        "--line-number --count "
        "--files-with-matches --files-without-match --invert-match --word-regexp --fixed-strings --pcre2 "
        "--smart-case --case-sensitive --multiline --with-filename --no-filename --no-line-number "
        "--only-matching "
        "--quiet --hidden --no-ignore --no-ignore-vcs --files --glob: --iglob: --type: --type-not: "
        "--type-list "
        "--max-count: --max-depth: --after-context: --before-context: --context: --regexp: --color: "
        "--heading "
        "--no-heading --json --stats --sort: --sortr: --vimgrep --column --trim --text --follow "
        "--no-messages "
        "--count-matches --replace: --max-columns: --no-config --debug",
        None,
    ),
    "ag": (
        "-ilLcvwQsSunaHo -A: -B: -C: -G: -m: --ignore-case --files-with-matches --count --literal --hidden "
        "--nocolor --nogroup --column --smart-case --ignore:",
        None,
    ),
    "fd": (
        "-HIuisgFapLl01 -t: -e: -E: -d: -S: -c: -j: --hidden --no-ignore --unrestricted --ignore-case "
        "--case-sensitive "
        "--glob --fixed-strings --absolute-path --full-path --follow --print0 --type: --extension: "
        "--exclude: "
        "--max-depth: --min-depth: --exact-depth: --size: --changed-within: --changed-before: --color: "
        "--max-results:",
        None,
    ),
    "jq": (
        "-rRncCMSaejs --raw-output --raw-input --null-input --compact-output --color-output "
        "--monochrome-output "
        "--sort-keys --ascii-output --exit-status --join-output --slurp --tab --indent:",
        None,
    ),
    "yq": ("-reP --raw-output --exit-status --prettyPrint", None),
    "file": ("-bLhikprsz0N --brief --dereference --mime --mime-type --mime-encoding", None),
    "strings": ("-a -n: -t: -e: --all --bytes: --radix: --encoding: -#", None),
    "readelf": ("-ahlSsdnrVWegtuAI --all --headers --symbols --dynamic --sections --segments --wide", None),
    "otool": ("-LlhDvt", None),
    "size": ("-ABdoxt -m", None),
    "base64": ("-dD --decode -w: --wrap: --ignore-garbage", 1),
    "base32": ("-d --decode -w: --wrap:", 1),
    "bc": ("-lq", None),
    "whatis": ("", None),
    "apropos": ("", None),
    "pgrep": (
        "-laLfvxnoicd -u: -U: -g: -G: -P: -t: -s: --list-name --list-full --full --exact --count",
        None,
    ),
    "top": ("-bcHiSn -n: -d: -p: -u: -w= -o: -l: -s:", None),
    "iostat": ("-cdhkmNptxyzCIwn", None),
    "vmstat": ("-afmnsdDtwz -S:", None),
    "lsof": ("-anPtlRUwbN -i= -p: -u: -c: -d: -s= -g=", None),
    "lspci": ("-vnkmtDx", None),
    "lsusb": ("-vt", None),
    "arch": ("", 0),
    "hostname": ("-fsiIAd --fqdn --short --ip-address --all-ip-addresses --long", 0),
    "hostnamectl": ("", 0),
    "dmesg": ("-TxkrtLuw -l: -f: --ctime --kernel --decode --raw --level: --facility: --follow --color=", 0),
    "ifconfig": ("-a", 1),
    "netstat": ("-anptulrisvwceolgWLmb -f: -p: -I:", 0),
    "ss": ("-anptulxsmioe46HOwdh --all --numeric --tcp --udp --listening --processes --summary", 0),
    "arp": ("-ane", 0),
    "crontab": ("-l", 0),
    "atq": ("", 0),
    "mount": ("-l", 0),
    "umask": ("-S", 0),
    "ulimit": ("-aHS", 0),
    "jobs": ("-lp", 0),
    "times": ("", 0),
    "wait": ("", 0),
    "dirs": ("-lpv", 0),
    "alias": ("", 0),
    "clear": ("", 0),
    "stty": ("-ag", 0),
    "system_profiler": ("", None),
    "ioreg": ("-lrbfw -c: -n: -p: -d:", None),
    "nvidia-smi": ("-L", 0),
    "sensors": ("-uA", 0),
    "fc-list": ("", None),
    "zcat": ("-f", None),
    "gzcat": ("-f", None),
    "bzcat": ("", None),
    "xzcat": ("", None),
    "zstdcat": ("", None),
    "zipinfo": ("-12smlvhtTz", None),
    "xattr": ("-lvrsx", None),
    "mdls": ("-r -n:", None),
    "apt-cache": ("-n --names-only --installed", None),
    "dpkg": ("-lLsSp --list --listfiles --status --search --print-avail", None),
    "dpkg-query": ("-lLsSpW -f: --list --show --listfiles --status --search --showformat:", None),
    "journalctl": (
        "-xefrkbqam -u: -n: -p: -S: -U: -t: -g: -o: --unit: --lines: --since: --until: --priority: "
        "--no-pager "
        "--follow --reverse --boot= --dmesg --output: --disk-usage --list-boots --user --system --grep: "
        "--catalog",
        None,
    ),
}
OUTPUT_AS_OPERAND = frozenset({"uniq", "base64", "base32"})  # a second operand, where allowed, is written

# What asks a name server: with these options, or without -n.
ASKING = {"hostname": ("-f", "-i", "-A", "-d", "--fqdn", "--ip-address", "--long")}
ASKING_UNLESS_NUMERIC = frozenset({"lsof", "netstat", "arp"})

# Of commands whose first word decides: the words under which they read, and the options of each.
BY_WORD: dict[str, dict[str, str]] = {
    "systemctl": dict.fromkeys(
        (
            "status",
            "show",
            "cat",
            "list-units",
            "list-timers",
            "list-unit-files",
            "list-sockets",
            "is-active",
        ),
        "-alnor --all --no-pager --user --type: --state: --full --failed --lines: --property: -t: -p:",
    )
    | {"is-enabled": "--user", "is-failed": "--user", "get-default": ""},
    "launchctl": {"list": "", "print": "", "print-disabled": ""},
    "defaults": {"read": "", "read-type": "", "domains": "", "find": ""},
    "diskutil": {"list": "", "info": ""},
    "brew": {
        "list": "-1lv --versions --cask --formula --full-name --pinned",
        "leaves": "-rp",
        "deps": "--tree --installed --include-build",
        "config": "",
        "--prefix": "",
        "--version": "",
        "--cellar": "",
    },
    "apt": {"list": "-a --installed --upgradable --all-versions", "show": "-a", "policy": ""},
    "pip": {
        "list": "--format: --user --local --not-required --editable",
        "show": "-f --files --verbose",
        "freeze": "--local --user --all",
        "check": "",
        "--version": "",
    },
    "conda": {"list": "", "info": "-eas --envs"},
    "npm": {
        "ls": "-gla --global --depth: --all --long --json",
        "list": "-gla --global --depth: --all --long --json",
    }
    | {"root": "-g", "prefix": "-g", "--version": "", "-v": ""},
    "docker": {
        "ps": "-aqlns -f: -n: --all --quiet --latest --no-trunc --size --filter: --format:",
        "images": "-aq --all --quiet --no-trunc --digests --filter: --format:",
        "logs": "-ft -n: --follow --timestamps --tail: --since: --until:",
        "inspect": "-s -f: --format: --size --type:",
        "stats": "-a --all --no-stream --no-trunc --format:",
        "top": "",
        "port": "",
        "diff": "",
        "version": "",
        "info": "",
        "history": "-q --no-trunc --quiet",
        "--version": "",
    },
    "pmset": {"-g": ""},
    "timedatectl": {"": "", "status": ""},
    "scutil": {"--dns": "", "--proxy": "", "--nwi": ""},
    "networksetup": {"-listallhardwareports": "", "-listallnetworkservices": "", "-getinfo": ""},
    "plutil": {"-p": "", "-lint": ""},
    "csrutil": {"status": ""},
    "spctl": {"--status": ""},
    "swapon": {"--show": ""},
    "unzip": {"-l": "", "-v": "", "-t": "", "-p": "", "-Z": ""},
    "gzip": {"-l": "", "-t": "", "-dc": "", "-cd": ""},
    "gunzip": {"-c": "", "-l": "", "-t": ""},
    "xz": {"-l": "", "-dc": ""},
    "7z": {"l": ""},
    "kill": {"-l": "", "-L": ""},
}
BOTH_NAMES = {
    "pip3": "pip",
    "batcat": "bat",
    "fdfind": "fd",
    "podman": "docker",
    "gawk": "awk",
    "mawk": "awk",
}

# Programs that answer --version before they read anything of the directory they are in; not so cargo, yarn
# or pnpm.
TELL_VERSION = names(
    """
    python python3 node ruby perl php java javac gcc g++ clang cc make cmake bash zsh fish git
    docker aws gh psql mysql sqlite3 redis-cli curl wget ssh vim nvim emacs uv deno swift jq rg brew
    pip pip3 npm
    """
)
OTHER_VERSION_OPTIONS = frozenset(
    {
        ("python", "-V"),
        ("python3", "-V"),
        ("node", "-v"),
        ("java", "-version"),
        ("ruby", "-v"),
        ("perl", "-v"),
    }
    | {("php", "-v"), ("ssh", "-V"), ("npm", "-v"), ("pip", "-V"), ("pip3", "-V")}
)

PAGERS = {
    "less": "-EeFfiIMmNnRrSsXx",
    "more": "-dflpcsu",
    "bat": "-pnAP -l: -r: --plain --number --show-all --language: --line-range: --style: --color: --paging: "
    "--decorations: --theme: --no-pager",
}
