/* The loops that a process start would drown: each prints the seconds that its loop took, one number a line.
 *
 *   loops open DIRECTORY COUNT       open and close its files in turn
 *   loops refuse DIRECTORY COUNT     try to open its files to write in turn, which each must fail with EROFS
 *   loops stat DIRECTORY COUNT       stat its entries in turn
 *   loops miss DIRECTORY COUNT NAMES [SALT]  stat names that are not there, NAMES different ones in turn
 *   loops list DIRECTORY COUNT       list it
 *   loops random FILE COUNT          read 4 KiB at random places
 *   loops read FILE                  read it from start to end, 128 KiB at a time
 *   loops write FILE MEBIBYTES       write it anew, 128 KiB at a time, and close it
 *   loops create DIRECTORY COUNT     make COUNT files of 100 bytes, then remove them: two numbers
 *   loops drop PATH...               no number: put the pages of all files there out of the page cache
 *
 * Any failure ends it with a message: a loop over errors is no measurement.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 128 * 1024, PAGE = 4096 };

static char buffer[BLOCK];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void report(double start) { printf("%.9f\n", now() - start); }

static void enter(const char *directory) {
    if (chdir(directory)) err(1, "%s", directory);
}

/* The names in the current directory that are no directories. */
static char **names_here(size_t *count) {
    size_t room = 1024;
    char **names = malloc(room * sizeof *names);
    DIR *directory = opendir(".");
    if (!names || !directory) err(1, "names");
    *count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_type == DT_DIR) continue;
        if (*count == room && !(names = realloc(names, (room *= 2) * sizeof *names))) err(1, "names");
        names[(*count)++] = strdup(entry->d_name);
    }
    closedir(directory);
    if (!*count) errx(1, "nothing to loop over");
    return names;
}

static void open_loop(long count) {
    size_t known;
    char **names = names_here(&known);
    double start = now();
    for (long turn = 0; turn < count; turn++) {
        int file = open(names[turn % known], O_RDONLY | O_CLOEXEC);
        if (file < 0) err(1, "%s", names[turn % known]);
        close(file);
    }
    report(start);
}

static void refuse_loop(long count) {
    size_t known;
    char **names = names_here(&known);
    double start = now();
    for (long turn = 0; turn < count; turn++)
        if (open(names[turn % known], O_WRONLY | O_CLOEXEC) >= 0 || errno != EROFS) errx(1, "%s", names[turn % known]);
    report(start);
}

static void stat_loop(long count) {
    size_t known;
    char **names = names_here(&known);
    struct stat found;
    double start = now();
    for (long turn = 0; turn < count; turn++)
        if (lstat(names[turn % known], &found)) err(1, "%s", names[turn % known]);
    report(start);
}

static void miss_loop(long count, long different, const char *salt) {
    char name[128];
    struct stat found;
    double start = now();
    for (long turn = 0; turn < count; turn++) {
        snprintf(name, sizeof name, "absent-%s-%ld", salt, turn % different);
        if (!lstat(name, &found) || errno != ENOENT) errx(1, "%s is there", name);
    }
    report(start);
}

static void list_loop(const char *path, long count) {
    double start = now();
    for (long turn = 0; turn < count; turn++) {
        size_t seen = 0;
        DIR *directory = opendir(path);
        if (!directory) err(1, "%s", path);
        while (readdir(directory)) seen++;
        closedir(directory);
        if (seen < 3) errx(1, "%s is empty", path);
    }
    report(start);
}

static void random_loop(const char *path, long count) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
    if (size < PAGE) err(1, "%s", path);
    uint64_t state = 88172645463325252ull; /* xorshift64: the same places every time, on every file system */
    double start = now();
    for (long turn = 0; turn < count; turn++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        if (pread(file, buffer, PAGE, (off_t)(state % (size / PAGE)) * PAGE) != PAGE) err(1, "%s", path);
    }
    report(start);
}

static void read_all(const char *path) {
    double start = now();
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got;
    if (file < 0) err(1, "%s", path);
    while ((got = read(file, buffer, BLOCK)) > 0) continue;
    if (got < 0) err(1, "%s", path);
    close(file);
    report(start);
}

static void write_all(const char *path, long mebibytes) {
    memset(buffer, 'x', BLOCK);
    double start = now();
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) err(1, "%s", path);
    for (long block = 0; block < mebibytes * (1024 * 1024 / BLOCK); block++)
        if (write(file, buffer, BLOCK) != BLOCK) err(1, "%s", path);
    if (close(file)) err(1, "%s", path);
    report(start);
}

static void create_loop(long count) {
    char name[64];
    memset(buffer, 'x', 100);
    double start = now();
    for (long turn = 0; turn < count; turn++) {
        snprintf(name, sizeof name, "made-%ld", turn);
        int file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file < 0 || write(file, buffer, 100) != 100 || close(file)) err(1, "%s", name);
    }
    report(start);
    start = now();
    for (long turn = 0; turn < count; turn++) {
        snprintf(name, sizeof name, "made-%ld", turn);
        if (unlink(name)) err(1, "%s", name);
    }
    report(start);
}

static int drop_one(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)found, (void)place;
    if (kind != FTW_F) return 0;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0; /* removed meanwhile */
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    return 0;
}

int main(int count, char **words) {
    if (count < 3) errx(2, "usage: loops ACTION PATH [COUNT]");
    const char *action = words[1], *path = words[2];
    long times = count > 3 ? atol(words[3]) : 1;
    if (!strcmp(action, "drop")) {
        sync(); /* dirty pages stay otherwise */
        for (int word = 2; word < count; word++) nftw(words[word], drop_one, 64, FTW_PHYS);
    } else if (!strcmp(action, "open")) enter(path), open_loop(times);
    else if (!strcmp(action, "refuse")) enter(path), refuse_loop(times);
    else if (!strcmp(action, "stat")) enter(path), stat_loop(times);
    else if (!strcmp(action, "miss")) enter(path), miss_loop(times, count > 4 ? atol(words[4]) : 1, count > 5 ? words[5] : "");
    else if (!strcmp(action, "create")) enter(path), create_loop(times);
    else if (!strcmp(action, "list")) list_loop(path, times);
    else if (!strcmp(action, "random")) random_loop(path, times);
    else if (!strcmp(action, "read")) read_all(path);
    else if (!strcmp(action, "write")) write_all(path, times);
    else errx(2, "no action %s", action);
    return 0;
}
