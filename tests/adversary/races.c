/* Races against a mounted view: some processes swap things, others read and write through the mount meanwhile.

     races SECONDS VIEW SOURCE source    swaps in the source, by renameat2(RENAME_EXCHANGE)
     races SECONDS VIEW SOURCE mount     swaps through the mount's own rename, of directories at stage

   What stands in the tree is laid out by test_races.py. Hidden files hold only the word below, hidden directories only
   names that begin with `hidden-`. Every actor counts what it tried, what went through and what it saw that it should
   not have; at the end each prints one line: NAME TRIED WENT_THROUGH BYTES_OF_HIDDEN NAMES_OF_HIDDEN.
   Whether a write landed outside is for the test to see, which looks at the source afterwards. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
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

#define SECRET "SECRET"
#define LEAST 50 /* tries of each actor, for each second of the race */
#define GRACE 50 /* seconds more for that */
#define SECRET_SIZE 4242 /* no file that is shown has this size */

struct counts {
  char name[48];
  volatile long tried, through, bytes, names;
};

static struct shared {
  volatile int stop;
  int used;
  struct counts of[64];
} *shared;

static const char *view, *source;

static const char *at(const char *base, const char *path) {
  static char joined[8][PATH_MAX];
  static int turn;
  char *to = joined[turn++ & 7];
  snprintf(to, PATH_MAX, "%s/%s", base, path);
  return to;
}

/* A buffer that came through the mount. */
static void judge_bytes(struct counts *mine, const char *data, ssize_t size) {
  if (size > 0) {
    mine->through++;
    if (memmem(data, size, SECRET, strlen(SECRET))) mine->bytes += size;
  }
}

static void judge_name(struct counts *mine, const char *name) {
  if (!strncmp(name, "hidden-", 7)) mine->names++;
}

/* -- readers ------------------------------------------------------------------------------------------------------- */

static void read_file(struct counts *mine, const char *path) {
  char data[8192];
  mine->tried++;
  int descriptor = open(at(view, path), O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) return;
  judge_bytes(mine, data, read(descriptor, data, sizeof data));
  struct stat status;
  if (!fstat(descriptor, &status) && status.st_size == SECRET_SIZE) mine->names++;
  close(descriptor);
}

static void map_file(struct counts *mine, const char *path) {
  mine->tried++;
  int descriptor = open(at(view, path), O_RDONLY | O_NONBLOCK);
  if (descriptor < 0) return;
  struct stat status;
  /* A page is in the file as long as nobody truncates it to nothing, and nobody does. */
  if (!fstat(descriptor, &status) && S_ISREG(status.st_mode) && status.st_size > 0) {
    void *mapped = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (mapped != MAP_FAILED) {
      judge_bytes(mine, mapped, status.st_size);
      munmap(mapped, status.st_size);
    }
  }
  close(descriptor);
}

static void list_directory(struct counts *mine, const char *path) {
  mine->tried++;
  DIR *directory = opendir(at(view, path));
  if (!directory) return;
  mine->through++;
  for (struct dirent *entry; (entry = readdir(directory));) {
    judge_name(mine, entry->d_name);
  }
  closedir(directory);
}

/* A link is shown at its own level; what following it gives is what must stay hidden. */
static void stat_name(struct counts *mine, const char *path, int is_hidden_name) {
  struct stat status;
  mine->tried++;
  if (!lstat(at(view, path), &status)) {
    mine->through++;
    if (is_hidden_name || (!S_ISLNK(status.st_mode) && status.st_size == SECRET_SIZE)) mine->names++;
  }
  mine->tried++;
  if (!stat(at(view, path), &status)) {
    mine->through++;
    if (is_hidden_name || status.st_size == SECRET_SIZE) mine->names++;
  }
  mine->tried++;
  if (!access(at(view, path), R_OK) && is_hidden_name) mine->names++;
}

static void read_link(struct counts *mine, const char *path) {
  char text[256];
  mine->tried++;
  if (readlink(at(view, path), text, sizeof text) >= 0) mine->through++;
  else if (errno == EINVAL) mine->through++; /* there, and no link */
}

/* -- writers: what they leave says where it came from --------------------------------------------------------------- */

static void write_file(struct counts *mine, const char *path, int flags) {
  mine->tried++;
  int descriptor = open(at(view, path), flags | O_NONBLOCK, 0644);
  if (descriptor < 0) return;
  if (write(descriptor, "written", 7) == 7) mine->through++;
  close(descriptor);
}

static void change_attributes(struct counts *mine, const char *path) {
  mine->tried++;
  if (!chmod(at(view, path), 0640)) mine->through++;
  mine->tried++;
  struct timespec times[2] = {{1, 0}, {1, 0}};
  if (!utimensat(AT_FDCWD, at(view, path), times, 0)) mine->through++;
  mine->tried++;
  if (!truncate(at(view, path), 64)) mine->through++;
}

static void make_names(struct counts *mine, const char *directory) {
  static unsigned turn;
  char name[PATH_MAX], other[PATH_MAX];
  snprintf(name, sizeof name, "%s/made-%d-%u", directory, getpid(), turn % 7);
  snprintf(other, sizeof other, "%s/moved-%d-%u", directory, getpid(), turn++ % 7);
  mine->tried++;
  int descriptor = open(at(view, name), O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (descriptor >= 0) {
    mine->through++;
    close(descriptor);
  }
  mine->tried++;
  if (!rename(at(view, name), at(view, other))) mine->through++;
  mine->tried++;
  if (!link(at(view, other), at(view, name))) mine->through++;
  mine->tried++;
  if (!unlink(at(view, other))) mine->through++;
  mine->tried++;
  if (!unlink(at(view, name))) mine->through++;
  mine->tried++;
  if (!mkdir(at(view, name), 0755)) mine->through++;
  mine->tried++;
  if (!rmdir(at(view, name))) mine->through++;
  mine->tried++;
  if (!symlink("made-nothing", at(view, name))) mine->through++;
  unlink(at(view, name));
}

/* What is in the hidden directory, taken away or moved out by its own name. */
static void take_away(struct counts *mine, const char *directory) {
  char name[PATH_MAX];
  snprintf(name, sizeof name, "%s/hidden-secret", directory);
  mine->tried++;
  if (!unlink(at(view, name))) mine->names++;
  mine->tried++;
  if (!rename(at(view, name), at(view, "stage/taken"))) mine->names++;
  mine->tried++;
  if (!link(at(view, name), at(view, "stage/taken"))) mine->names++;
  else if (errno == ENOENT) mine->through++;
}

/* -- the actors ------------------------------------------------------------------------------------------------------ */

static void exchange(struct counts *mine, const char *base, const char *one, const char *two) {
  mine->tried++;
  if (!renameat2(AT_FDCWD, at(base, one), AT_FDCWD, at(base, two), RENAME_EXCHANGE)) mine->through++;
}

static void swap_source(struct counts *mine) {
  exchange(mine, source, "open/dir", "open/dirlink");
  exchange(mine, source, "open/file", "open/filelink");
  exchange(mine, source, "stage/dir", "stage/dirlink");
  exchange(mine, source, "stage/file", "stage/filelink");
  exchange(mine, source, "stage/mixed", "stage/mixedlink");
  /* What is wanted is a swap between a judgement and an act, which takes some 0.1 ms. Without a pause the daemon, which is
     told of each swap, has little time left for what is tried. */
  usleep(rand() % 500);
}

static void swap_mount(struct counts *mine) {
  exchange(mine, view, "stage/one", "stage/deep/two");
  exchange(mine, view, "stage/file", "stage/deep/file");
  exchange(mine, view, "stage/dir", "stage/deep/dir");
}

static void readers(struct counts *mine) {
  static const char *const files[] = {"open/dir/hidden-secret", "open/dirlink/hidden-secret", "open/file",
                                      "open/filelink", "stage/file", "stage/filelink", "open/dir/plain",
                                      "stage/dirlink/hidden-secret"};
  for (unsigned i = 0; i < sizeof files / sizeof *files; i++) read_file(mine, files[i]);
  map_file(mine, "open/file");
  map_file(mine, "open/filelink");
}

static void listers(struct counts *mine) {
  list_directory(mine, "open");
  list_directory(mine, "open/dir");
  list_directory(mine, "open/dirlink");
  list_directory(mine, "stage/dirlink");
}

static void lookers(struct counts *mine) {
  stat_name(mine, "open/dir", 0);
  stat_name(mine, "open/dirlink", 0);
  stat_name(mine, "open/file", 0);
  stat_name(mine, "open/filelink", 0);
  stat_name(mine, "open/dir/hidden-secret", 1);
  stat_name(mine, "open/dirlink/hidden-secret", 1);
  read_link(mine, "open/dir");
  read_link(mine, "open/dirlink");
  read_link(mine, "open/file");
  read_link(mine, "open/filelink");
}

static void writers(struct counts *mine) {
  write_file(mine, "stage/file", O_WRONLY);
  write_file(mine, "stage/filelink", O_RDWR);
  write_file(mine, "stage/file", O_WRONLY | O_CREAT);
  write_file(mine, "stage/filelink", O_WRONLY | O_CREAT | O_APPEND);
  write_file(mine, "stage/dir/hidden-secret", O_WRONLY);
  write_file(mine, "stage/dirlink/hidden-secret", O_WRONLY);
  change_attributes(mine, "stage/file");
  change_attributes(mine, "stage/filelink");
  change_attributes(mine, "stage/dir/hidden-secret");
}

static void makers(struct counts *mine) {
  make_names(mine, "stage/dir");
  make_names(mine, "stage/dirlink");
  make_names(mine, "stage/mixed");
  take_away(mine, "stage/dir");
  take_away(mine, "stage/dirlink");
}

static void mount_readers(struct counts *mine) {
  /* `one` and `deep/two` change places: a link that lands on something shown from the one lands on /target, which is
     hidden, from the other. */
  read_file(mine, "stage/one/link");
  read_file(mine, "stage/deep/two/link");
  read_file(mine, "stage/one/../../target/hidden-secret");
  read_file(mine, "stage/file");
  list_directory(mine, "stage/one/up");
  list_directory(mine, "stage/deep/two/up");
}

static void mount_writers(struct counts *mine) {
  write_file(mine, "stage/one/link", O_WRONLY);
  write_file(mine, "stage/deep/two/link", O_WRONLY);
  write_file(mine, "stage/file", O_WRONLY | O_CREAT);
  write_file(mine, "stage/deep/file", O_WRONLY);
  make_names(mine, "stage/dir");
  make_names(mine, "stage/deep/dir");
  make_names(mine, "stage/one/up");
}

static pid_t actor(const char *name, void (*act)(struct counts *)) {
  struct counts *mine = &shared->of[shared->used++];
  snprintf(mine->name, sizeof mine->name, "%s", name);
  pid_t child = fork();
  if (child < 0) {
    perror("fork");
    exit(1);
  }
  if (!child) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* No attacker is left where the test is stopped. */
    while (!shared->stop) act(mine);
    _exit(0);
  }
  return child;
}

/* For so long, and on a busy machine until each actor has tried something so often. */
static void run_for(double seconds) {
  for (double gone = 0; gone < seconds + GRACE; gone += 0.1) {
    int idle = 0;
    for (int i = 0; i < shared->used; i++) idle |= shared->of[i].tried < LEAST * seconds;
    if (gone >= seconds && !idle) return;
    nanosleep(&(struct timespec){0, 100000000}, NULL);
  }
}

int main(int count, char **words) {
  if (count != 5) return 2;
  double seconds = atof(words[1]);
  view = words[2];
  source = words[3];
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  int in_mount = !strcmp(words[4], "mount");
  pid_t children[16];
  int started = 0;
  if (in_mount) {
    children[started++] = actor("swap", swap_mount);
    children[started++] = actor("read", mount_readers);
    children[started++] = actor("read", mount_readers);
    children[started++] = actor("write", mount_writers);
  } else {
    children[started++] = actor("swap", swap_source);
    children[started++] = actor("read", readers);
    children[started++] = actor("read", readers);
    children[started++] = actor("list", listers);
    children[started++] = actor("look", lookers);
    children[started++] = actor("write", writers);
    children[started++] = actor("make", makers);
  }
  run_for(seconds);
  shared->stop = 1;
  int wrong = 0;
  for (int i = 0; i < started; i++) {
    int status;
    waitpid(children[i], &status, 0);
    if (status) wrong = 1;
  }
  for (int i = 0; i < shared->used; i++) {
    struct counts *one = &shared->of[i];
    printf("%s %ld %ld %ld %ld\n", one->name, one->tried, one->through, one->bytes, one->names);
  }
  return wrong;
}
