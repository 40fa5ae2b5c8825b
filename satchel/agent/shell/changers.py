"""The commands that write, use the network, need privilege or destroy. Knows nothing of what only reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from satchel.agent.shell.touch import READS, Finding, Inner, Rule, Touch, does, finding, unknown
from satchel.agent.shell.words import Word, names, text_of

_W, _N, _P, _D, _U = Touch.WRITES, Touch.NETWORK, Touch.PRIVILEGE, Touch.DESTRUCTIVE, Touch.UNKNOWN

# What, which touches, which commands.
_ALWAYS: tuple[tuple[str, tuple[Touch, ...], str], ...] = (
    ("deletes files", (_W, _D), "rm rmdir unlink shred srm wipe"),
    ("cuts files off", (_W, _D), "truncate"),
    ("moves files to the bin", (_W,), "trash trash-put"),
    ("writes files", (_W,), "touch mkdir mktemp tee cp ln install split"),
    ("writes files", (_W,), "csplit mkfifo mknod patch ditto zip gzip gunzip"),
    ("writes files", (_W,), "bzip2 bunzip2 xz unxz zstd unzip 7z 7za unrar cpio ar sips textutil logger"),
    ("changes what files may be used for", (_W,), "chflags chattr setfacl xattr plutil"),
    ("overwrites the clipboard", (_W,), "pbcopy xclip xsel wl-copy"),
    ("ends processes", (_D,), "kill pkill killall xkill skill"),
    ("stops or restarts the machine", (_P, _D), "shutdown reboot halt poweroff telinit"),
    ("formats or partitions a disk", (_W, _P, _D), "mkswap wipefs fdisk sfdisk"),
    ("formats or partitions a disk", (_W, _P, _D), "cfdisk gdisk sgdisk parted blkdiscard"),
    ("formats or partitions a disk", (_W, _P, _D), "hdparm zpool lvremove"),
    ("formats or partitions a disk", (_W, _P, _D), "vgremove pvremove cryptsetup newfs"),
    ("removes a user or group", (_W, _P, _D), "userdel groupdel deluser delgroup"),
    ("changes users", (_W, _P), "useradd usermod groupadd adduser addgroup"),
    ("changes users", (_W, _P), "passwd chpasswd chsh chfn visudo dscl"),
    ("changes the system", (_W, _P), "umount mount swapoff swapon modprobe"),
    ("changes the system", (_W, _P), "insmod rmmod iptables ip6tables nft ufw"),
    ("changes the system", (_W, _P), "sysctl ifconfig route ip nvram"),
    ("changes the system", (_W, _P), "pmset networksetup scutil timedatectl hostnamectl"),
    ("changes the system", (_W, _P), "hostname dpkg dpkg-reconfigure update-alternatives"),
    ("changes the system", (_W, _P), "csrutil spctl tmutil firewall-cmd"),
    ("uses the network", (_N,), "ping ping6 dig nslookup host whois"),
    ("uses the network", (_N,), "traceroute tracepath mtr nmap arping getent"),
    ("copies over the network", (_N, _W), "scp sftp ftp tftp rclone aria2c yt-dlp youtube-dl"),
    ("opens a connection", (_N, _U), "nc ncat netcat telnet socat openssl s_client"),
    ("starts another program", (_U,), "open xdg-open osascript automator"),
    ("starts another program", (_U,), "shortcuts say gnome-terminal at batch"),
    ("starts another program", (_U,), "screen tmux systemd-run gdb lldb strace ltrace dtruss ldd"),
    ("opens an editor", (_W, _U), "vi vim nvim nano emacs pico ed ex code subl micro helix hx"),
    ("runs the project's own code", (_U,), "make cmake ninja just gradle mvn"),
    ("runs the project's own code", (_U,), "ant bazel tox nox pytest rake invoke"),
    ("runs code that it fetches", (_N, _W, _U), "npx bunx uvx pipx uv cargo go rustup deno bun"),
    ("changes the shell", (_U,), "alias unalias set shopt setopt unsetopt"),
    ("changes the shell", (_U,), "hash enable bind complete compgen unset"),
    ("changes the shell", (_U,), "declare typeset local readonly let"),
    ("changes the shell", (_U,), "getopts mapfile readarray shift disown autoload"),
    ("changes the shell", (_U,), "zmodload emulate zstyle pushd popd umask ulimit"),
    ("changes the shell", (_U,), "fc wait jobs logout suspend fg bg"),
)  # fmt: skip

_PACKAGES = (
    "apt apt-get aptitude dnf yum pacman apk zypper snap flatpak port emerge xbps-install pkg softwareupdate"
)
_USER_PACKAGES = "brew pip pip3 npm pnpm yarn gem conda mamba poetry composer mas"
_REMOVING = names(
    """
    remove purge autoremove uninstall rm delete destroy prune erase clean cleanup autoclean rmi down
    terminate drop unpublish unlink rb kill reset flushall drain nuke -R -Rs -Rns -e del
    """
)
_FETCHING = "search info view outdated update index download show audit"
_CLOUDS = """
    aws gcloud az kubectl helm terraform tofu pulumi heroku fly flyctl doctl gh glab vercel netlify
    wrangler oc gsutil vagrant ansible
"""
_DATABASES = """
    psql mysql mariadb sqlite3 mongo mongosh redis-cli cqlsh duckdb clickhouse-client sqlcmd dropdb
    dropuser createdb influx
"""
_SQL_LOSS = re.compile(
    r"\b(drop|truncate|delete\s+from|flushall|flushdb|dropDatabase|deleteMany|remove)\b", re.IGNORECASE
)
_EVERYTHING = re.compile(
    r"(/|~/?|\.{1,2}/?|/\*|~/\*|\*|\$\{?HOME\}?/?\*?|/(etc|usr|var|home|Users|bin|lib|opt|System|Library)/?\*?)"
)


def _values(arguments: Sequence[Word]) -> list[str]:
    return [word.value or word.prefix for word in arguments]


def _permissions(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    deep = any(re.match(r"-[a-zA-Z]*R|--recursive", value) for value in _values(arguments))
    if deep and any(_EVERYTHING.fullmatch(word.source.strip("\"'")) for word in arguments):
        return [finding("changes the permissions of everything below, which nothing brings back", _W, _D)]
    return [finding("changes what files may be used for", _W)]


def _move(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if arguments and arguments[-1].value == "/dev/null":
        return [finding("loses files", _W, _D)]
    return [finding("moves files, over others of the same name", _W)]


def _dangerous_words(name: str) -> Rule:
    """A program of many commands on things of a network, some of which delete."""

    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        words = {part for value in _values(arguments) for part in re.split(r"[-:_]", value)} | set(
            _values(arguments)
        )
        if name.startswith("drop") or words & _REMOVING:
            return [finding("deletes things", _N, _W, _D)]
        return [finding("works on things over the network", _N, _U)]

    return rule


def _kubectl(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if arguments and arguments[0].value in (
        "get",
        "describe",
        "logs",
        "top",
        "explain",
        "api-resources",
        "version",
    ):
        return [finding("reads over the network", Touch.READS, _N)]
    return list(_dangerous_words("kubectl")(arguments, inner))


def _database(name: str) -> Rule:
    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        loss = name.startswith("drop") or _SQL_LOSS.search(text_of(arguments))
        found = [unknown("runs statements that cannot be judged")]
        return [finding("deletes data", _W, _D), *found] if loss else found

    return rule


def _packages(privileged: bool) -> Rule:
    def rule(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
        values = [value for value in _values(arguments) if not value.startswith("-") or value in _REMOVING]
        first = values[0] if values else ""
        rights = [_P] if privileged else []
        if first in _REMOVING or (
            values[1:2] and values[1] in ("clean", "prune", "purge", "remove") and first == "cache"
        ):
            return [finding("removes packages or files", _W, _D, *rights)]
        if first in (
            "run",
            "exec",
            "test",
            "start",
            "x",
            "create",
            "init",
            "ci-test",
            "dlx",
            "shell",
            "build",
        ):
            return [finding("runs code of the project or of a package", _N, _W, _U)]
        if first in _FETCHING.split():
            return [
                finding(
                    "asks the network for packages",
                    Touch.READS,
                    _N,
                    *([_W] if first in ("update", "download") else []),
                )
            ]
        return [finding("installs or changes packages", _N, _W, *rights)]

    return rule


def _docker(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    values = [value for value in _values(arguments) if not value.startswith("-")]
    head = values[:2]
    if head[:1] in (["run"], ["exec"]) or head in (
        ["compose", "run"],
        ["compose", "exec"],
        ["container", "exec"],
    ):
        return [finding("runs a program in a container, which may share the machine's files", _W, _N, _U)]
    if set(values[:3]) & _REMOVING:
        return [finding("removes containers, images or data", _W, _D)]
    if head[:1] in (["pull"], ["push"], ["build"], ["login"], ["search"], ["compose"], ["buildx"]):
        return [finding("builds or moves images", _W, _N)]
    if head[:1] in (
        ["stop"],
        ["start"],
        ["restart"],
        ["create"],
        ["tag"],
        ["commit"],
        ["cp"],
        ["save"],
        ["load"],
    ):
        return [finding("changes containers or images", _W)]
    things = (["volume"], ["network"], ["container"], ["image"], ["system"])
    lists = head[:1] in things and head[1:] in (["ls"], ["list"], ["inspect"], ["df"])
    if lists and not any(word.may_be_option for word in arguments):
        return [READS]
    return [unknown("has a command that is not known")]


def _download(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    found = [finding("fetches over the network", _N)]
    for word in arguments:
        value = word.value or word.prefix
        if re.match(r"-[a-zA-Z]*[oOJ]|--output|--remote-name|--dump-header|-D|--cookie-jar|-c$", value):
            found.append(finding("writes what it fetches to a file", _N, _W))
        if re.match(r"-[a-zA-Z]*[dFT]|--data|--form|--upload|--json|-X|--request", value):
            found.append(finding("sends data", _N, _W))
        if re.match(r"-K|--config|--libcurl|-[a-zA-Z]*K", value) or word.splits:
            found.append(unknown("is called in a way that cannot be judged"))
    return found


def _wget(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    values = _values(arguments)
    if any(value in ("-qO-", "-O-", "-nvO-", "--spider") for value in values):
        return [finding("fetches over the network", _N)]
    odd = any(re.match(r"-e|--execute|--use-askpass|--config", value) for value in values)
    return [
        finding("fetches a file over the network", _N, _W),
        *([unknown("is given commands")] if odd else []),
    ]


def _rsync(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    values = _values(arguments)
    found = [finding("copies files", _W, *([_N] if any(":" in value for value in values) else []))]
    if any(value.startswith(("--delete", "--del", "--remove-source-files")) for value in values):
        found.append(finding("deletes files", _W, _D))
    if any(re.match(r"-[a-zA-Z]*e|--rsh|--rsync-path", value) for value in values):
        found.append(unknown("runs a program to get there"))
    return found


def _crontab(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if any(value.startswith("-") and "r" in value for value in _values(arguments)):
        return [finding("deletes the table of planned commands", _W, _D)]
    return [finding("plans commands that run later", _W, _U)]


def _services(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if set(_values(arguments)) & {
        "poweroff",
        "reboot",
        "halt",
        "kexec",
        "suspend",
        "hibernate",
        "emergency",
        "rescue",
    }:
        return [finding("stops or restarts the machine", _P, _D)]
    if set(_values(arguments)) & {"kill", "remove", "bootout", "unload"}:
        return [finding("ends services", _W, _P, _D)]
    return [finding("starts, stops or changes services", _W, _P)]


def _disk(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if re.search(
        r"erase|partition|delete|zero|random|secure|reformat|split|merge", text_of(arguments), re.IGNORECASE
    ):
        return [finding("erases or partitions a disk", _W, _P, _D)]
    return [finding("changes disks", _W, _P)]


def _defaults(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if set(_values(arguments)) & {"delete", "delete-all"}:
        return [finding("deletes settings", _W, _D)]
    return [finding("changes settings", _W)]


def _kill(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if arguments and arguments[0].value == "-0" and not any(word.may_be_option for word in arguments[1:]):
        return [READS]
    return [finding("ends processes", _D)]


_READ_OPTIONS = frozenset({"-r", "-s", "-rs", "-d", "-n", "-t"})


def _read(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    """`read` into harmless variables: a name as a[$(rm x)] would run something, and others are settings."""
    rest = [word.value for word in arguments]
    while rest and rest[0] in _READ_OPTIONS:
        option = rest.pop(0)
        # A shell in which the option has no value takes this for a name: a number or a mark is harmless.
        if option in ("-n", "-t", "-d"):
            value = rest.pop(0) if rest else None
            if value is None or not re.fullmatch(
                r"[^A-Za-z_-]?" if option == "-d" else r"[0-9]+", value, re.ASCII
            ):
                return [unknown("reads in a form that not every shell takes alike")]
    if all(name is not None and harmless_variable(name) for name in rest):
        return [READS]
    return [unknown("sets variables that may mean something to the shell")]


def _export(arguments: Sequence[Word], inner: Inner) -> list[Finding]:
    if [word.value for word in arguments] in ([], ["-p"]):
        return [READS]
    return [unknown("changes how later commands run")]


_ZSH_MEANS = names(
    """
    path cdpath fpath mailpath manpath fignore psvar watch argv status pipestatus prompt signals
    module_path histchars commands functions aliases galiases saliases builtins options modules
    parameters history dirstack nameddirs userdirs http_proxy https_proxy ftp_proxy all_proxy
    no_proxy
    """
)
_PLAIN_CAPITALS = names(
    """
    DIR FILE FILES NAME COUNT TOTAL SIZE DATE TODAY URL I N X PID RESULT OUTPUT
    """
)


def harmless_variable(name: str) -> bool:
    """Whether no shell and no usual program takes the variable for a setting."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _ZSH_MEANS and name != "_"
    return bool(plain) or name in _PLAIN_CAPITALS


def changers() -> dict[str, Rule]:
    """Every command of this module by its name."""
    rules: dict[str, Rule] = {}
    for why, touches, listed in _ALWAYS:
        rules |= dict.fromkeys(listed.split(), does(why, *touches))
    rules |= dict.fromkeys(_PACKAGES.split(), _packages(privileged=True))
    rules |= dict.fromkeys(_USER_PACKAGES.split(), _packages(privileged=False))
    rules |= {name: _dangerous_words(name) for name in _CLOUDS.split()}
    rules |= {name: _database(name) for name in _DATABASES.split()}
    rules |= dict.fromkeys(("chmod", "chown", "chgrp"), _permissions)
    rules |= dict.fromkeys(("systemctl", "launchctl", "service", "rc-service", "initctl"), _services)
    rules |= dict.fromkeys(("docker", "podman", "docker-compose", "nerdctl"), _docker)
    return rules | {
        "mv": _move,
        "kubectl": _kubectl,
        "curl": _download,
        "http": _download,
        "wget": _wget,
        "rsync": _rsync,
        "crontab": _crontab,
        "diskutil": _disk,
        "defaults": _defaults,
        "kill": _kill,
        "read": _read,
        "export": _export,
    }
