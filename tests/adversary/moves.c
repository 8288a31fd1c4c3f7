/* A race for a directory that its owner moves to a hidden place and back, while a session looks at names in it, makes them
   and takes them away.

     moves SECONDS VIEW SOURCE look|change LEAST

   LEAST is how many moves there are to be for each second.

   SOURCE has `open/d`, which is moved, and `hidden`, which no rule shows; `hidden/hidden-secret` is in `d` only while that
   is in `hidden`. `look` only looks for the secret, `change` makes names of its own and takes away those of the owner. At
   the end one line each: `owner MOVES MADE STAYED REMOVED`, how many names were made in `d` while it was hidden, how many of
   these stayed, and how many of the owner's were taken away there; and for each session process `session TRIED THROUGH
   SEEN`, what it tried, what went through, and how often it saw anything of the secret. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SECRET "hidden-secret"
#define MOST 512
#define GRACE 50 /* seconds more, on a busy machine, until there were enough moves */
#define LAID 16 /* files that the owner lays out for the session to take away */

static struct shared {
  volatile int stop;
  long moves, made, stayed, removed;
  struct {
    long tried, through, seen;
  } of[8];
} *shared;

static int source;
static const char *view;
static int looks;

static void pause_up_to(long nanoseconds) {
  struct timespec moment = {0, rand() % nanoseconds};
  nanosleep(&moment, NULL);
}

struct names {
  int count;
  char of[MOST][32];
};

static void list(const char *path, struct names *names) {
  names->count = 0;
  int opened = openat(source, path, O_RDONLY | O_DIRECTORY);
  DIR *directory = opened < 0 ? NULL : fdopendir(opened);
  if (!directory) return;
  for (struct dirent *entry; (entry = readdir(directory)) && names->count < MOST;)
    if (entry->d_name[0] != '.') snprintf(names->of[names->count++], 32, "%.31s", entry->d_name);
  closedir(directory);
}

static int has(const struct names *names, const char *name) {
  for (int i = 0; i < names->count; i++)
    if (!strcmp(names->of[i], name)) return 1;
  return 0;
}

/* Whether a name is, or is not, in the hidden directory for good: what the daemon takes back takes it a moment. */
static int lasts(const char *name, int there) {
  char path[64];
  struct stat status;
  snprintf(path, sizeof path, "hidden/d/%s", name);
  for (int i = 0; i < 2000; i++) {
    int is_there = !fstatat(source, path, &status, AT_SYMLINK_NOFOLLOW);
    if (is_there != there) return 0;
    nanosleep(&(struct timespec){0, 100000}, NULL);
  }
  return 1;
}

static void move(const char *from, const char *to) {
  if (renameat(source, from, source, to)) {
    perror(from);
    exit(1);
  }
}

/* Without a view, the session takes it away. */
static void move_secret(const char *from, const char *to) {
  if (renameat(source, from, source, to)) close(openat(source, to, O_WRONLY | O_CREAT, 0600));
}

static void owner(void) {
  static struct names before, after;
  srand(getpid());
  while (!shared->stop) {
    for (int i = 0; i < LAID && !looks; i++) {
      char path[64];
      snprintf(path, sizeof path, "open/d/laid-%d", i);
      close(openat(source, path, O_WRONLY | O_CREAT | O_NONBLOCK, 0600));
    }
    move("open/d", "hidden/d");
    move_secret("hidden/" SECRET, "hidden/d/" SECRET);
    list("hidden/d", &before);
    pause_up_to(1000000);
    list("hidden/d", &after);
    for (int i = 0; i < after.count; i++)
      if (!strncmp(after.of[i], "made", 4) && !has(&before, after.of[i])) {
        shared->made++;
        if (lasts(after.of[i], 1)) shared->stayed++;
      }
    for (int i = 0; i < before.count; i++)
      if (!strncmp(before.of[i], "laid", 4) && !has(&after, before.of[i]) && lasts(before.of[i], 0)) shared->removed++;
    move_secret("hidden/d/" SECRET, "hidden/" SECRET);
    move("hidden/d", "open/d");
    shared->moves++;
    pause_up_to(1000000);
  }
}

static int directory = -1;

/* By a descriptor that was opened when the directory was there, a new one now and then. */
static int again(int number) {
  if (number % 40 == 0 && directory >= 0) {
    close(directory);
    directory = -1;
  }
  if (directory < 0) {
    char path[4096];
    snprintf(path, sizeof path, "%s/open/d", view);
    directory = open(path, O_RDONLY | O_DIRECTORY);
  }
  return directory;
}

#define TRY(mine, call) (shared->of[mine].tried++, (call) >= 0 ? (shared->of[mine].through++, 1) : 0)

static void look(int mine, int number) {
  struct stat status;
  int opened;
  if (again(number) < 0) return;
  if (TRY(mine, fstatat(directory, SECRET, &status, AT_SYMLINK_NOFOLLOW))) shared->of[mine].seen++;
  if (TRY(mine, faccessat(directory, SECRET, F_OK, 0))) shared->of[mine].seen++;
  if (TRY(mine, opened = openat(directory, SECRET, O_RDONLY))) {
    shared->of[mine].seen++;
    close(opened);
  }
  if (TRY(mine, opened = openat(directory, SECRET, O_WRONLY | O_APPEND))) {
    shared->of[mine].seen++;
    close(opened);
  }
  if (TRY(mine, renameat(directory, SECRET, directory, "renamed"))) shared->of[mine].seen++;
  if (TRY(mine, unlinkat(directory, SECRET, 0))) shared->of[mine].seen++;
  if (TRY(mine, fstatat(directory, "there", &status, 0)) && number % 4 == 0) {
    opened = openat(directory, ".", O_RDONLY | O_DIRECTORY);
    DIR *listed = opened < 0 ? NULL : fdopendir(opened);
    if (TRY(mine, listed ? 0 : -1)) {
      for (struct dirent *entry; (entry = readdir(listed));)
        if (!strcmp(entry->d_name, SECRET)) shared->of[mine].seen++;
      closedir(listed);
    }
  }
}

static void change(int mine, int number) {
  char made[32], second[32], laid[32];
  int opened;
  if (again(number) < 0) return;
  snprintf(made, sizeof made, "made-%d-%d", mine, number % 16);
  snprintf(second, sizeof second, "made-again-%d-%d", mine, number % 16);
  snprintf(laid, sizeof laid, "laid-%d", (number * 2 + mine) % LAID);
  if (TRY(mine, opened = openat(directory, made, O_WRONLY | O_CREAT | O_EXCL, 0600))) close(opened);
  TRY(mine, linkat(directory, "there", directory, second, 0));
  TRY(mine, unlinkat(directory, made, 0));
  TRY(mine, unlinkat(directory, second, 0));
  TRY(mine, renameat(directory, laid, directory, made));
  TRY(mine, unlinkat(directory, made, 0));
  TRY(mine, mkdirat(directory, made, 0700));
  TRY(mine, unlinkat(directory, made, AT_REMOVEDIR));
  TRY(mine, symlinkat("nothing", directory, second));
  TRY(mine, unlinkat(directory, second, 0));
  TRY(mine, mknodat(directory, second, S_IFIFO | 0600, 0));
  TRY(mine, unlinkat(directory, second, 0));
  TRY(mine, unlinkat(directory, laid, 0));
}

static pid_t child(void (*act)(void)) {
  pid_t process = fork();
  if (process < 0) exit(1);
  if (!process) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* No attacker is left where the test is stopped. */
    act();
    _exit(0);
  }
  return process;
}

static int number_of_mine;

static void session(void) {
  for (int number = 0; !shared->stop; number++) (looks ? look : change)(number_of_mine, number);
}

/* For so long, and on a busy machine until owner and session have done something so often. */
static void run_for(double seconds, double least) {
  for (double gone = 0; gone < seconds + GRACE; gone += 0.1) {
    int enough = shared->moves > least * seconds && shared->of[0].tried + shared->of[1].tried > 10 * least * seconds;
    if (gone >= seconds && enough) return;
    nanosleep(&(struct timespec){0, 100000000}, NULL);
  }
}

int main(int count, char **words) {
  if (count != 6) return 2;
  view = words[2];
  source = open(words[3], O_PATH | O_DIRECTORY);
  looks = !strcmp(words[4], "look");
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (source < 0 || shared == MAP_FAILED) return 1;
  pid_t children[3];
  children[0] = child(owner);
  for (number_of_mine = 0; number_of_mine < 2; number_of_mine++) children[1 + number_of_mine] = child(session);
  double seconds = atof(words[1]);
  run_for(seconds, atof(words[5]));
  shared->stop = 1;
  int wrong = 0;
  for (int i = 0; i < 3; i++) {
    int status;
    waitpid(children[i], &status, 0);
    if (status) wrong = 1;
  }
  printf("owner %ld %ld %ld %ld\n", shared->moves, shared->made, shared->stayed, shared->removed);
  for (int i = 0; i < 2; i++)
    printf("session %ld %ld %ld\n", shared->of[i].tried, shared->of[i].through, shared->of[i].seen);
  return wrong;
}
