/*
 * Records every change to the files of one folder in a journal, so that a test can compute the files that a power cut at
 * any point of the journal leaves behind. The test loads this library into the server with LD_PRELOAD.
 *
 * CRASH_FOLDER is the absolute path of the folder and CRASH_JOURNAL the file of the journal. Files in subfolders and the
 * shared memory of SQLite (`-shm`), which need not survive a power cut, are not recorded. A change that the journal
 * cannot express is recorded as UNSUPPORTED, and the test fails.
 *
 * A lock makes each change and its record one step. A record of a sync says how many records were in the journal when
 * the sync began, because a sync covers only the writes before it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The kinds of records. journal.rs reads them. */
enum { OPEN = 1, CREATE, WRITE, TRUNCATE, SYNC, SYNC_FOLDER, REMOVE, RENAME, LINK, UNSUPPORTED };

struct header {
    uint64_t kind;
    /* The inode of the file. */
    uint64_t file;
    /* WRITE: the offset; TRUNCATE: the size; SYNC and SYNC_FOLDER: the number of records when the sync began. */
    uint64_t at;
    /* The length of the data that follows: of WRITE the written bytes; of OPEN, CREATE and REMOVE the name; of RENAME
       and LINK both names with a zero byte between them; of UNSUPPORTED the name of the function. */
    uint64_t bytes;
};

#define FILES_MAX 65536
#define THE_FOLDER UINT64_MAX

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static size_t folder_bytes;
static int journal = -1;
static pid_t recorded_process;
static uint64_t records;
/* The inode of each open file of the folder, by descriptor; 0 for other descriptors. */
static uint64_t files[FILES_MAX];

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CRASH_FOLDER"), *file = getenv("CRASH_JOURNAL");
    if (!path || !file || strlen(path) >= sizeof folder)
        return;
    folder_bytes = strlen(path);
    memcpy(folder, path, folder_bytes + 1);
    journal = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (journal < 0)
        abort();
    recorded_process = getpid();
}

/* A child process between fork and exec changes no file of the folder, and must not wait for the lock. */
static int is_recording(void)
{
    return journal >= 0 && getpid() == recorded_process;
}

static uint64_t file_of(int fd)
{
    if (fd < 0 || fd >= FILES_MAX || !__atomic_load_n(&files[fd], __ATOMIC_ACQUIRE) || !is_recording())
        return 0;
    return __atomic_load_n(&files[fd], __ATOMIC_ACQUIRE);
}

static void set_file(int fd, uint64_t file)
{
    if (fd >= FILES_MAX)
        abort();
    __atomic_store_n(&files[fd], file, __ATOMIC_RELEASE);
}

/* Appends a record. The caller holds the lock. */
static void record(uint64_t kind, uint64_t file, uint64_t at, const void *data, size_t bytes)
{
    struct header header = { kind, file, at, bytes };
    struct iovec parts[] = { { &header, sizeof header }, { (void *)data, bytes } };
    if (syscall(SYS_writev, journal, parts, 2) != (long)(sizeof header + bytes))
        abort();
    records++;
}

static void record_unsupported(const char *function)
{
    pthread_mutex_lock(&lock);
    record(UNSUPPORTED, 0, 0, function, strlen(function));
    pthread_mutex_unlock(&lock);
}

/* Returns the name in the folder of the file at this absolute path: "" for the folder itself, NULL for a file that is not
   recorded. */
static const char *name_of(const char *path)
{
    if (strncmp(path, folder, folder_bytes) != 0)
        return NULL;
    if (!path[folder_bytes])
        return "";
    const char *name = path + folder_bytes + 1;
    size_t bytes = strlen(name);
    if (path[folder_bytes] != '/' || !bytes || strchr(name, '/'))
        return NULL;
    return bytes > 4 && strcmp(name + bytes - 4, "-shm") == 0 ? NULL : name;
}

/* Writes the path of an open file to `path`. Returns 0 if the file has no path. */
static int path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long bytes = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (bytes <= 0)
        return 0;
    path[bytes] = 0;
    return 1;
}

/* Returns the name in the folder of the file at `path`, which is relative to `directory`. */
static const char *name_at(int directory, const char *path, char buffer[PATH_MAX])
{
    size_t bytes = 0;
    if (path[0] != '/') {
        int has_path = directory == AT_FDCWD ? getcwd(buffer, PATH_MAX) != NULL : path_of(directory, buffer);
        if (!has_path)
            return NULL;
        bytes = strlen(buffer);
        buffer[bytes++] = '/';
    }
    if (bytes + strlen(path) >= PATH_MAX)
        return NULL;
    strcpy(buffer + bytes, path);
    return name_of(buffer);
}

static int open_file(int directory, const char *path, int flags, mode_t mode)
{
    char buffer[PATH_MAX];
    struct stat status;
    const char *name = is_recording() ? name_at(directory, path, buffer) : NULL;
    if (!name)
        return syscall(SYS_openat, directory, path, flags, mode);
    pthread_mutex_lock(&lock);
    int is_new = (flags & O_CREAT) && syscall(SYS_faccessat, directory, path, F_OK) != 0;
    int fd = syscall(SYS_openat, directory, path, flags, mode);
    if (fd >= 0 && fstat(fd, &status) == 0) {
        if (S_ISREG(status.st_mode) && name[0]) {
            set_file(fd, status.st_ino);
            record(is_new ? CREATE : OPEN, status.st_ino, 0, name, strlen(name));
            if (flags & O_TRUNC)
                record(TRUNCATE, status.st_ino, 0, NULL, 0);
        } else if (S_ISDIR(status.st_mode)) {
            set_file(fd, THE_FOLDER);
        }
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(last) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, last); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE(flags)
    return open_file(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char *path, int flags, ...)
{
    MODE(flags)
    return open_file(directory, path, flags, mode);
}

int openat64(int directory, const char *path, int flags, ...)
{
    MODE(flags)
    return open_file(directory, path, flags, mode);
}

int close(int fd)
{
    if (file_of(fd)) {
        pthread_mutex_lock(&lock);
        set_file(fd, 0);
        pthread_mutex_unlock(&lock);
    }
    return syscall(SYS_close, fd);
}

static int control(int fd, int command, void *argument)
{
    int result = syscall(SYS_fcntl, fd, command, argument);
    if (result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC) && file_of(fd))
        set_file(result, file_of(fd));
    return result;
}

int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return control(fd, command, argument);
}

int fcntl64(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return control(fd, command, argument);
}

int dup3(int fd, int target, int flags)
{
    int result = syscall(SYS_dup3, fd, target, flags);
    if (result >= 0 && is_recording())
        set_file(result, file_of(fd));
    return result;
}

int dup2(int fd, int target)
{
    return fd == target ? fd : dup3(fd, target, 0);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    uint64_t file = file_of(fd);
    if (!file)
        return syscall(SYS_write, fd, data, bytes);
    pthread_mutex_lock(&lock);
    ssize_t written = syscall(SYS_write, fd, data, bytes);
    if (written > 0)
        record(WRITE, file, syscall(SYS_lseek, fd, 0, SEEK_CUR) - written, data, written);
    pthread_mutex_unlock(&lock);
    return written;
}

static ssize_t write_at(int fd, const void *data, size_t bytes, off64_t at)
{
    uint64_t file = file_of(fd);
    if (!file)
        return syscall(SYS_pwrite64, fd, data, bytes, at);
    pthread_mutex_lock(&lock);
    ssize_t written = syscall(SYS_pwrite64, fd, data, bytes, at);
    if (written > 0)
        record(WRITE, file, at, data, written);
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    return write_at(fd, data, bytes, at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at)
{
    return write_at(fd, data, bytes, at);
}

static int truncate_file(int fd, off64_t size)
{
    uint64_t file = file_of(fd);
    if (!file)
        return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_ftruncate, fd, size);
    if (result == 0)
        record(TRUNCATE, file, size, NULL, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t size)
{
    return truncate_file(fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    return truncate_file(fd, size);
}

static int sync_file(int fd, long call)
{
    uint64_t file = file_of(fd);
    if (!file)
        return syscall(call, fd);
    pthread_mutex_lock(&lock);
    uint64_t before = records;
    pthread_mutex_unlock(&lock);
    int result = syscall(call, fd);
    if (result == 0) {
        pthread_mutex_lock(&lock);
        record(file == THE_FOLDER ? SYNC_FOLDER : SYNC, file, before, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int fd)
{
    return sync_file(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_file(fd, SYS_fdatasync);
}

int unlinkat(int directory, const char *path, int flags)
{
    char buffer[PATH_MAX];
    const char *name = is_recording() && !(flags & AT_REMOVEDIR) ? name_at(directory, path, buffer) : NULL;
    if (!name)
        return syscall(SYS_unlinkat, directory, path, flags);
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_unlinkat, directory, path, flags);
    if (result == 0)
        record(REMOVE, 0, 0, name, strlen(name));
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

/* Records that a file got a second name, or another name. */
static void record_names(uint64_t kind, const char *from, const char *to)
{
    char names[2 * PATH_MAX];
    size_t bytes = strlen(from) + 1;
    memcpy(names, from, bytes);
    memcpy(names + bytes, to, strlen(to));
    record(kind, 0, 0, names, bytes + strlen(to));
}

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags)
{
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *old = NULL, *new = NULL;
    if (is_recording()) {
        old = name_at(from_directory, from, from_buffer);
        new = name_at(to_directory, to, to_buffer);
    }
    if (!old && !new)
        return syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    if (result == 0 && old && new && !(flags & RENAME_EXCHANGE))
        record_names(RENAME, old, new);
    else if (result == 0)
        record(UNSUPPORTED, 0, 0, "rename", 6);
    pthread_mutex_unlock(&lock);
    return result;
}

int renameat(int from_directory, const char *from, int to_directory, const char *to)
{
    return renameat2(from_directory, from, to_directory, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int linkat(int from_directory, const char *from, int to_directory, const char *to, int flags)
{
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *new = is_recording() ? name_at(to_directory, to, to_buffer) : NULL;
    if (!new)
        return syscall(SYS_linkat, from_directory, from, to_directory, to, flags);
    const char *old = name_at(from_directory, from, from_buffer);
    pthread_mutex_lock(&lock);
    int result = syscall(SYS_linkat, from_directory, from, to_directory, to, flags);
    if (result == 0 && old)
        record_names(LINK, old, new);
    else if (result == 0)
        record(UNSUPPORTED, 0, 0, "link", 4);
    pthread_mutex_unlock(&lock);
    return result;
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

static void *map(void *address, size_t bytes, int protection, int flags, int fd, off64_t at)
{
    /* Reading through a mapping is fine. */
    if ((flags & MAP_SHARED) && (protection & PROT_WRITE) && file_of(fd))
        record_unsupported("mmap");
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, at);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t at)
{
    return map(address, bytes, protection, flags, fd, at);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t at)
{
    return map(address, bytes, protection, flags, fd, at);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (file_of(fd))
        record_unsupported("writev");
    return syscall(SYS_writev, fd, parts, count);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags)
{
    if (file_of(to))
        record_unsupported("copy_file_range");
    return syscall(SYS_copy_file_range, from, from_at, to, to_at, bytes, flags);
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    if (file_of(fd))
        record_unsupported("fallocate");
    return syscall(SYS_fallocate, fd, mode, at, bytes);
}
