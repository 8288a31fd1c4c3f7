/* Requests of every kind to a mounted view, again and again, each to something the view shows or refuses.

     soak VIEW SOURCE ROUNDS

   VIEW shows SOURCE: `work` at stage; `read`, with the files `file` and `other` and the directory `many`, at ro; and
   `hidden` at none. A round leaves in `work` what it found there. What is to succeed must succeed, and what is to be
   refused must be refused: anything else ends the program with 1 and a line that names it. */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

static void must(int holds, const char *what) {
  if (!holds) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
  }
}

#define DONE(call) must((call) >= 0, #call)
#define REFUSED(call, code) must((call) < 0 && errno == (code), #call " is not refused with " #code)

/* statx(2) that asks the daemon, whatever the kernel knows. */
static int ask(const char *path) {
  struct statx status;
  return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &status);
}

static void list(const char *path) {
  DIR *directory = opendir(path);
  must(directory != NULL, path);
  long middle = 0;
  for (int count = 0; readdir(directory); count++)
    if (count == 20) middle = telldir(directory);
  rewinddir(directory);
  must(readdir(directory) != NULL, "readdir");
  seekdir(directory, middle);
  DONE(fsync(dirfd(directory)));
  closedir(directory);
}

static void files(int number) {
  char name[64], data[4096];
  memset(data, number, sizeof data);
  int created = open("work/file", O_RDWR | O_CREAT | O_EXCL, 0644);
  DONE(created);
  REFUSED(open("work/file", O_RDWR | O_CREAT | O_EXCL, 0644), EEXIST);
  for (int i = 0; i < 100; i++) DONE(pwrite(created, data, 30 + i, i * 30));
  REFUSED(fallocate(created, 0, 0, 8192), EOPNOTSUPP);
  DONE(ftruncate(created, 4096));
  DONE(fsync(created));
  DONE(fdatasync(created));
  DONE(pread(created, data, sizeof data, 0));
  void *mapped = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, created, 0);
  must(mapped != MAP_FAILED, "mmap");
  ((volatile char *)mapped)[0] = 'm';
  DONE(msync(mapped, 4096, MS_SYNC));
  munmap(mapped, 4096);
  struct stat status;
  DONE(fstat(created, &status));
  DONE(fchmod(created, 0600));
  DONE(close(created));
  int appends = open("work/file", O_WRONLY | O_APPEND);
  DONE(appends);
  for (int i = 0; i < 4; i++) DONE(write(appends, data, 64));
  DONE(close(appends));
  int direct = open("work/file", O_RDONLY | O_DIRECT);
  if (direct >= 0) close(direct);
  DONE(truncate("work/file", 100));
  int emptied = open("work/file", O_WRONLY | O_TRUNC);
  DONE(emptied);
  DONE(close(emptied));
  DONE(chmod("work/file", 0640));
  DONE(chown("work/file", -1, -1));
  DONE(utimensat(AT_FDCWD, "work/file", (struct timespec[2]){{number, 0}, {number, 0}}, 0));
  DONE(ask("work/file"));
  DONE(access("work/file", W_OK));
  DONE(setxattr("work/file", "user.soak", "value", 5, 0));
  DONE(getxattr("work/file", "user.soak", data, sizeof data));
  DONE(getxattr("work/file", "user.policyfs.level", data, sizeof data));
  DONE(listxattr("work/file", data, sizeof data));
  DONE(removexattr("work/file", "user.soak"));
  REFUSED(getxattr("work/file", "user.soak", data, sizeof data), ENODATA);
  REFUSED(setxattr("work/file", "trusted.soak", "value", 5, 0), EOPNOTSUPP);
  /* A reader, and what it has open is removed meanwhile. */
  int open_still = open("work/file", O_RDWR);
  DONE(open_still);
  DONE(unlink("work/file"));
  DONE(pwrite(open_still, data, 10, 0));
  DONE(pread(open_still, data, 10, 0));
  DONE(fstat(open_still, &status));
  DONE(close(open_still));
  snprintf(name, sizeof name, "work/missing-%d", number);
  REFUSED(open(name, O_RDONLY), ENOENT);
}

static void names(void) {
  char text[64];
  DONE(mkdir("work/directory", 0755));
  REFUSED(mkdir("work/directory", 0755), EEXIST);
  DONE(mknod("work/directory/node", S_IFREG | 0644, 0));
  DONE(mkfifo("work/fifo", 0644));
  DONE(symlink("directory/node", "work/link"));
  DONE(readlink("work/link", text, sizeof text));
  DONE(ask("work/link"));
  DONE(access("work/link", R_OK));
  DONE(link("work/directory/node", "work/second"));
  DONE(ask("work/second"));
  REFUSED(rmdir("work/directory"), ENOTEMPTY);
  DONE(rename("work/second", "work/third"));
  DONE(mknod("work/fourth", S_IFREG | 0644, 0));
  DONE(renameat2(AT_FDCWD, "work/third", AT_FDCWD, "work/fourth", RENAME_EXCHANGE));
  REFUSED(renameat2(AT_FDCWD, "work/third", AT_FDCWD, "work/fourth", RENAME_NOREPLACE), EEXIST);
  DONE(rename("work/third", "work/fourth"));
  DONE(unlink("work/fourth"));
  DONE(rename("work/directory", "work/moved"));
  DONE(ask("work/moved/node"));
  list("work/moved");
  REFUSED(unlink("work/moved"), EISDIR);
  REFUSED(rmdir("work/link"), ENOTDIR);
  DONE(unlink("work/link"));
  DONE(unlink("work/fifo"));
  DONE(unlink("work/moved/node"));
  DONE(rmdir("work/moved"));
  REFUSED(rmdir("work/moved"), ENOENT);
}

static void looks(int number) {
  char name[64], data[4096];
  struct statvfs space;
  DONE(statvfs(".", &space));
  list("read/many");
  list(".");
  DONE(ask("read/file"));
  for (int i = 0; i < 20; i++) DONE(access("read/file", R_OK));
  int opened = open("read/file", O_RDONLY);
  DONE(opened);
  DONE(posix_fadvise(opened, 0, 0, POSIX_FADV_DONTNEED));
  DONE(pread(opened, data, sizeof data, 0));
  DONE(close(opened));
  for (int i = 0; i < 4; i++) {
    snprintf(name, sizeof name, "read/missing-%d-%d", number, i);
    REFUSED(ask(name), ENOENT);
  }
  int before = open("read/many/0", O_RDONLY);
  DONE(before);
  DONE(close(before));
}

/* What the policy refuses: the part of the handlers that ends in an exception. */
static void refusals(int number) {
  char name[64], data[64];
  for (int i = 0; i < 4; i++) {
    snprintf(name, sizeof name, "read/.env.%d-%d", number, i);
    REFUSED(ask(name), ENOENT);
  }
  for (int i = 0; i < 20; i++) REFUSED(access("read/file", W_OK), EROFS);
  REFUSED(open("read/file", O_WRONLY), EROFS);
  REFUSED(truncate("read/file", 0), EROFS);
  REFUSED(chmod("read/file", 0600), EROFS);
  REFUSED(setxattr("read/file", "user.soak", "value", 5, 0), EROFS);
  REFUSED(removexattr("read/file", "user.soak"), EROFS);
  REFUSED(getxattr("read/file", "user.soak", data, sizeof data), ENODATA);
  REFUSED(open("read/new", O_WRONLY | O_CREAT, 0644), EROFS);
  REFUSED(mkdir("read/new", 0755), EROFS);
  REFUSED(mknod("read/new", S_IFREG | 0644, 0), EROFS);
  REFUSED(symlink("file", "read/new"), EROFS);
  REFUSED(link("read/file", "work/linked"), EXDEV);
  REFUSED(unlink("read/file"), EROFS);
  REFUSED(rmdir("read/many"), EROFS);
  REFUSED(rename("read/file", "work/file"), EROFS);
  REFUSED(mknod("work/device", S_IFCHR | 0644, 0x103), EPERM);
  REFUSED(rename("read/file", "read/other"), EROFS);
}

/* What the owner does in the source, of which events tell the daemon. */
static void changes_outside(const char *source) {
  char inside[4096], outside[4096], moved[4096], file[4200];
  struct stat status;
  snprintf(inside, sizeof inside, "%s/work/outside", source);
  snprintf(outside, sizeof outside, "%s/hidden/outside", source);
  snprintf(moved, sizeof moved, "%s/work/outside-moved", source);
  snprintf(file, sizeof file, "%s/file", inside);
  DONE(mkdir(inside, 0755));
  int opened = open(file, O_WRONLY | O_CREAT, 0644);
  DONE(opened);
  /* What events do to these answers depends on when they come: so do they. */
  stat("work/outside/file", &status);
  stat("work/outside/missing", &status);
  int directory = open("work/outside", O_RDONLY | O_DIRECTORY);
  DONE(write(opened, "changed", 7));
  DONE(close(opened));
  DONE(rename(inside, moved));
  stat("work/outside-moved/file", &status);
  DONE(rename(moved, outside));
  if (directory >= 0) {
    fstatat(directory, "file", &status, 0);
    fstatat(directory, "missing", &status, 0);
    close(directory);
  }
  stat("work/outside/file", &status);
  snprintf(file, sizeof file, "%s/file", outside);
  DONE(unlink(file));
  DONE(rmdir(outside));
}

int main(int count, char **words) {
  if (count != 4 || chdir(words[1])) return 2;
  int rounds = atoi(words[3]);
  /* Names that are missing are other ones each time: those that the kernel has it does not ask for. */
  unsigned first = (unsigned)time(NULL) << 12;
  for (int i = 0; i < rounds; i++) {
    files(first + i);
    names();
    looks(first + i);
    refusals(first + i);
    changes_outside(words[2]);
  }
  return 0;
}
