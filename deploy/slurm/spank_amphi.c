/* SPANK plugin of AmphiFS: `sbatch|srun|salloc --amphi[=SIZE]` gives a job an empty file system of its own on its
 * nodes.
 *
 * At submission it checks SIZE. On each node of the job, its prolog and epilog run the script `job`, which starts and
 * ends the file system as the job's user. What became of the start is noted in STATE/NODE-JOB, which only root can
 * write. Each task of the job gets the mount in AMPHI_JOB_DIR from this note, or ends with the reason why there is
 * none.
 *
 * Invariants: prolog and epilog never fail, as that would take the node out of service. Nothing that a user has set is
 * believed on a node: SIZE is checked there again. Nothing secret passes here.
 *
 * plugstack.conf: `optional /usr/local/lib/amphi/spank_amphi.so NAME=VALUE ...`, with the names of `settings`. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(amphi, 1);

#ifndef AMPHI_PREFIX
#define AMPHI_PREFIX "/usr/local"
#endif
#define STATE "/run/amphi-slurm"
#define LINE_MAX_BYTES 4096
/* Zones smaller than this have no room for their logs. */
#define SIZE_MIN (512ULL << 20)

/* What the administrator can set. The script gets each as AMPHI_JOB_..., if it is set. */
static struct {
	const char *name;
	const char *variable;
	const char *value;
} settings[] = {
	{ "scratch", "AMPHI_JOB_SCRATCH", NULL },  /* Folder of each node for the data of jobs [/tmp] */
	{ "default", NULL, NULL },                 /* Space on each node without SIZE [90 % of what is free] */
	{ "limit", NULL, NULL },                   /* Largest SIZE [none] */
	{ "secret", "AMPHI_JOB_SECRET", NULL },    /* File with the secret of the nodes [/etc/slurm/amphi.secret] */
	{ "address", "AMPHI_JOB_ADDRESS", NULL },  /* Host in addresses of servers [{host}, which is the node's name] */
	{ "ports", "AMPHI_JOB_PORTS", NULL },      /* Ports for first servers [61000-64999] */
	{ "within", "AMPHI_JOB_WITHIN", NULL },    /* Seconds that the start may take [60] */
	{ "script", NULL, NULL },                  /* [AMPHI_PREFIX/lib/amphi/slurm-job] */
};
enum { SCRATCH, DEFAULT, LIMIT, SECRET, ADDRESS, PORTS, WITHIN, SCRIPT, SETTINGS };

static int on_option(int val, const char *text, int remote);

static struct spank_option option = {
	"amphi", "SIZE", "give the job an AmphiFS of its own, with SIZE on each node, in $AMPHI_JOB_DIR",
	2 /* SIZE is optional */, 0, on_option,
};

/* Reads a size, such as 4096, 64K, 100G or 2TiB. Returns 0 if it is none. */
static uint64_t bytes_of(const char *text)
{
	static const char suffixes[] = "KMGT";
	char *end;
	const char *at;
	unsigned shift = 0;
	uint64_t number;

	if (*text < '0' || *text > '9')
		return 0;
	errno = 0;
	number = strtoull(text, &end, 10);
	if (errno)
		return 0;
	if (*end && (at = strchr(suffixes, *end & ~0x20))) {
		shift = 10 * (unsigned)(at - suffixes + 1);
		end++;
		if (!strcasecmp(end, "iB") || !strcasecmp(end, "B"))
			end += strlen(end);
	}
	return *end || number > UINT64_MAX >> shift ? 0 : number << shift;
}

/* The space on each node that --amphi=TEXT asks for; 0: as much as there is. Returns what is wrong with it, or NULL. */
static const char *wanted(const char *text, uint64_t *bytes)
{
	static char problem[512];
	const char *limit = settings[LIMIT].value;

	if (!text || !*text)
		text = settings[DEFAULT].value;
	*bytes = 0;
	if (!text)
		text = limit;
	if (!text)
		return NULL;
	*bytes = bytes_of(text);
	if (!*bytes)
		snprintf(problem, sizeof problem, "--amphi=%.64s: is no size; write for example 800M or 100G", text);
	else if (*bytes < SIZE_MIN)
		snprintf(problem, sizeof problem, "--amphi=%.64s: too little; ask for at least 512M on each node", text);
	else if (limit && *bytes > bytes_of(limit))
		snprintf(problem, sizeof problem, "--amphi=%.64s: too much; jobs may have %.64s on each node", text, limit);
	else
		return NULL;
	return problem;
}

/* The user's side checks the option; the node's has it from the job, and checks it in the prolog. */
static int on_option(int val, const char *text, int remote)
{
	uint64_t bytes;
	const char *problem;

	(void)val;
	if (remote || !(problem = wanted(text, &bytes)))
		return 0;
	slurm_error("%s", problem);
	return -1;
}

int slurm_spank_init(spank_t spank, int count, char **words)
{
	int result = 0;

	for (int i = 0; i < count; i++) {
		const char *value = strchr(words[i], '=');
		int known = 0;

		for (int k = 0; value && k < SETTINGS && !known; k++) {
			known = !strncmp(words[i], settings[k].name, (size_t)(value - words[i]))
				&& !settings[k].name[value - words[i]];
			if (known)
				settings[k].value = strdup(value + 1);
		}
		if (!known || ((!strncmp(words[i], "limit=", 6) || !strncmp(words[i], "default=", 8)) && !bytes_of(value + 1))) {
			slurm_error("spank_amphi: plugstack.conf: %s: is no setting of this plugin", words[i]);
			result = -1;
		}
	}
	/* slurmd itself has no options. */
	if (spank_context() != S_CTX_SLURMD && spank_option_register(spank, &option) != ESPANK_SUCCESS)
		result = -1;
	return result;
}

/* The path of the note about a job on a node. Returns whether there can be one. */
static int path_of_note(char path[LINE_MAX_BYTES], const char *node, uint32_t job)
{
	if (!node || !*node || strchr(node, '/'))
		return 0;
	return snprintf(path, LINE_MAX_BYTES, STATE "/%s-%u", node, job) < LINE_MAX_BYTES;
}

/* Notes for the tasks of the job: the run of the job, and what became of the start. */
static void note(const char *path, const char *run, const char *text)
{
	char line[LINE_MAX_BYTES + 64];
	int length = snprintf(line, sizeof line, "%.32s %s\n", run, text);
	int fd;

	mkdir(STATE, 0755);
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0 || fchmod(fd, 0644) || write(fd, line, (size_t)length) != length)
		slurm_error("spank_amphi: %s: %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* Reads a note. Returns the text in it behind the run, or NULL. */
static char *read_note(const char *path, char line[LINE_MAX_BYTES])
{
	int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	ssize_t length = fd < 0 ? -1 : read(fd, line, LINE_MAX_BYTES - 1);
	char *blank;

	if (fd >= 0)
		close(fd);
	if (length <= 0)
		return NULL;
	line[length] = 0;
	line[strcspn(line, "\n")] = 0;
	if (!(blank = strchr(line, ' ')))
		return NULL;
	*blank = 0;
	return blank + 1;
}

/* Runs the script, and reads the line that it prints. */
static void run_script(const char *what, uint64_t bytes, char line[LINE_MAX_BYTES])
{
	const char *script = settings[SCRIPT].value ? settings[SCRIPT].value : AMPHI_PREFIX "/lib/amphi/slurm-job";
	size_t length = 0;
	int both[2], status;
	pid_t child = -1;

	line[0] = 0;
	if (!pipe2(both, O_CLOEXEC)) {
		child = fork();
		if (child == 0) {
			char size[32];
			long most = sysconf(_SC_OPEN_MAX);
			sigset_t none;
			int nothing = open("/dev/null", O_RDWR);

			/* The file system lives longer than this process, and shall hold nothing of it. */
			if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(both[1], 1) < 0 || dup2(nothing, 2) < 0)
				_exit(127);
			for (int fd = 3; fd < (most > 0 && most < 65536 ? most : 65536); fd++)
				close(fd);
			sigemptyset(&none);
			sigprocmask(SIG_SETMASK, &none, NULL);
			signal(SIGPIPE, SIG_DFL);
			for (int k = 0; k < SETTINGS; k++)
				if (settings[k].variable && settings[k].value)
					setenv(settings[k].variable, settings[k].value, 1);
			snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
			setenv("AMPHI_JOB_SIZE", bytes ? size : "", 1);
			setenv("PATH", AMPHI_PREFIX "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
			execl(script, script, what, (char *)NULL);
			_exit(127);
		}
		close(both[1]);
		while (child > 0 && length < LINE_MAX_BYTES - 1) {
			ssize_t got = read(both[0], line + length, LINE_MAX_BYTES - 1 - length);

			if (got <= 0 && !(got < 0 && errno == EINTR))
				break;
			length += got > 0 ? (size_t)got : 0;
		}
		close(both[0]);
		line[length] = 0;
		line[strcspn(line, "\n")] = 0;
	}
	while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (child < 0 || (!line[0] && strcmp(what, "end")))
		snprintf(line, LINE_MAX_BYTES, "failed %s cannot be run on this node", script);
}

int slurm_spank_job_prolog(spank_t spank, int count, char **words)
{
	char path[LINE_MAX_BYTES], line[LINE_MAX_BYTES], *text = NULL;
	const char *run = getenv("SLURM_JOB_RESTART_COUNT"), *problem, *before;
	uint32_t job;
	uint64_t bytes;

	(void)count, (void)words;
	if (spank_option_getopt(spank, &option, &text) != ESPANK_SUCCESS)
		return 0;
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || !path_of_note(path, getenv("SLURMD_NODENAME"), job)) {
		slurm_error("spank_amphi: the prolog does not know its job and its node");
		return 0;
	}
	run = run ? run : "0";
	/* A prolog that runs twice for the same run of a job leaves its file system alone. */
	before = read_note(path, line);
	if (before && !strcmp(line, run) && !strncmp(before, "ready ", 6))
		return 0;
	note(path, run, "failed the prolog has not ended");
	if ((problem = wanted(text, &bytes)))
		snprintf(line, sizeof line, "failed %s", problem);
	else
		run_script("start", bytes, line);
	note(path, run, line);
	if (strncmp(line, "ready ", 6))
		slurm_error("spank_amphi: job %u: %s", job, line);
	return 0;
}

int slurm_spank_job_epilog(spank_t spank, int count, char **words)
{
	char path[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
	uint32_t job;

	(void)count, (void)words;
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS || !path_of_note(path, getenv("SLURMD_NODENAME"), job)
	    || access(path, F_OK))
		return 0;
	run_script("end", 0, line);
	if (line[0])
		slurm_error("spank_amphi: job %u: %s", job, line);
	unlink(path);
	return 0;
}

/* Tells a task where the file system is. Runs as the user, in the task, whose standard error gets what is wrong. */
int slurm_spank_task_init(spank_t spank, int count, char **words)
{
	char path[LINE_MAX_BYTES], line[LINE_MAX_BYTES], node[256], other[8], *text = NULL, *why;
	uint32_t job;
	struct stat found;
	int is_asked = spank_option_getopt(spank, &option, &text) == ESPANK_SUCCESS;

	(void)count, (void)words;
	if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS
	    || spank_getenv(spank, "SLURMD_NODENAME", node, sizeof node) != ESPANK_SUCCESS || !path_of_note(path, node, job))
		return 0;
	why = read_note(path, line);
	if (!why && !is_asked)
		return 0;
	if (!why) {
		slurm_error("--amphi: job %u has no file system on %s: --amphi belongs to the command that makes the job "
			    "(and slurm.conf needs PrologFlags=Alloc)", job, node);
		return -1;
	}
	if (strncmp(why, "ready ", 6)) {
		slurm_error("--amphi: job %u has no file system on %s: %s", job, node,
			    strncmp(why, "failed ", 7) ? why : why + 7);
		return -1;
	}
	why += 6;
	if (stat(why, &found)) {
		slurm_error("--amphi: the file system %s of job %u on %s has ended (%s); the system log of the node says why",
			    why, job, node, strerror(errno));
		return -1;
	}
	/* `amphi job run` in the job has given its program another one. */
	if (spank_getenv(spank, "AMPHI_JOB_TOKEN", other, sizeof other) != ESPANK_ENV_NOEXIST)
		return 0;
	spank_setenv(spank, "AMPHI_JOB_DIR", why, 1);
	/* So that `amphi top` and others find its mount and server. */
	if (strlen(why) > 4 && !strcmp(why + strlen(why) - 4, "/mnt")) {
		memcpy(why + strlen(why) - 4, "/run", 4);
		spank_setenv(spank, "AMPHI_RUNTIME", why, 1);
	}
	return 0;
}
