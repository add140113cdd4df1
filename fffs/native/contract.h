/* The C interface of fffs, for cffi (glue.py) and for the C sources (through fffs.h). cffi does not preprocess, so
 * there are only declarations.
 *
 * Conventions
 *   - Functions that can fail return 0 or -errno. errno itself is not part of the interface.
 *   - The caller owns memory that it passes in. It is used only until the call returns.
 *   - Every function may be called from any thread, and after fork in parent and child.
 *   - Offsets and lengths are in bytes. Integers in files are little-endian, as on every supported host.
 *   - A comment at a declaration says if it differs from these. */

/* ---------------------------------------------------------------- checksums (crc.c) */

/* Known-answer test of crc.c and of libdeflate, whose versions 1.20 to 1.22 returned wrong CRCs in some builds. Call
 * it once, when the library is loaded. Returns 0, or -EILSEQ if this machine computes wrong checksums. */
int fffs_self_test(void);

/* Continues a CRC-32 as in zlib (polynomial 0xEDB88320; crc is 0 at first) over size bytes. */
uint32_t fffs_crc32(uint32_t crc, const void *data, size_t size);

/* Returns the CRC-32 of A followed by B, from the CRC-32 of each and the length of B. */
uint32_t fffs_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* ---------------------------------------------------------------- CRC-32C (crc32c.c) */

/* Continues a CRC-32C (Castagnoli, polynomial 0x82F63B78; crc is 0 at first) over size bytes, with the processor's
 * instruction if it has one. data may be NULL if size is 0. */
uint32_t fffs_crc32c(uint32_t crc, const void *data, size_t size);

/* Returns the CRC-32C of A followed by B, from the CRC-32C of each and the length of B. */
uint32_t fffs_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* Returns a CRC-32C as TFRecord stores it: rotated, plus a constant, because a CRC over data that contains its own CRC
 * is a bad checksum. */
uint32_t fffs_crc32c_mask(uint32_t crc);

/* Known-answer test of fffs_crc32c and fffs_crc32c_combine. Returns 0, or -EILSEQ if they are wrong here. */
int fffs_crc32c_self_test(void);

/* Returns how CRC-32C is computed here: "processor", "tables", or "bits" if neither passed its test. */
const char *fffs_crc32c_name(void);

/* fffs_crc32c without the processor's instruction, for tests. */
uint32_t fffs_crc32c_by_tables(uint32_t crc, const void *data, size_t size);

/* ---------------------------------------------------------------- pooled memory (buffer.c) */

/* Returns a page-aligned buffer of at least size bytes, or NULL if there is no memory. The content is unspecified, but
 * never another process's. The pool keeps the pages of returned buffers, so that the next batch costs no page faults.
 * The caller owns the buffer until it passes it to fffs_buffer_give, which accepts NULL. */
void *fffs_buffer_take(size_t size);
void fffs_buffer_give(void *buffer);

/* Returns the bytes of buffers that callers own, and of idle buffers in the pool. */
void fffs_buffer_usage(uint64_t *taken, uint64_t *idle);

/* ---------------------------------------------------------------- batched reads (engine.c and its parts) */

/* The checksum of a record. */
enum { FFFS_CHECK_NONE = 0, FFFS_CHECK_CRC32 = 1, FFFS_CHECK_CRC32C = 2 };

/* Added to a checksum: it is only computed. */
enum { FFFS_CHECK_COMPUTE = 256 };

/* Bytes of a block of a record: the unit of parallel reads, and of a packed folder's block checksums. */
enum { FFFS_BLOCK = 1048576 };

/* One record, or one range of a file, to read. */
typedef struct {
    int64_t offset; /* in the file */
    int64_t length;
    uint8_t *dest;     /* room for length bytes; NULL: check the bytes and drop them */
    int32_t fd;        /* open for reading until the call returns */
    uint32_t check;    /* FFFS_CHECK_* */
    uint32_t expected; /* the correct checksum */
    uint32_t actual;   /* out: the computed checksum, if everything could be read */
    int32_t status;    /* out: 0; -EBADMSG: the checksum differs; -ENODATA: the file ends too early; or -errno */
    uint32_t
        around; /* read uncached bytes with their whole aligned blocks of this size; 0: alone. Of an object: the most
                        * bytes that one request asks for, if more than FFFS_RANGE_MAX */
    uint32_t align;    /* from fffs_open_direct: bypass the page cache; 0: do not */
    int32_t direct_fd; /* with align: the descriptor from fffs_open_direct */
} fffs_request;

/* Opens the file of fd again, for reads that bypass the page cache (O_DIRECT). Their offsets, lengths and addresses
 * must be multiples of *align. Returns a descriptor, which the caller closes; or -errno: -EOPNOTSUPP if the file
 * system does not report its alignment (Linux before 6.1, most network file systems). */
int fffs_open_direct(int fd, uint32_t *align);

/* Reads and checks count requests, in parallel and in any order. When it returns, even after an error, no I/O into any
 * dest is in flight. Returns 0 if all are good; -EIO if at least one status is not 0 (the other requests are good); or
 * -errno (-ENOMEM) if the batch could not be run: then no status is meaningful. */
int fffs_read_batch(fffs_request *requests, size_t count);

/* Reads and checks one record. Returns 0 or its status; or -errno if it could not be run. */
int fffs_read_one(int fd, int64_t offset, int64_t length, uint8_t *dest, uint32_t check, uint32_t expected);

/* Asks the kernel to read ranges of files, with the blocks around them, into the page cache, and does not wait for the
 * disk. Only a hint. Takes 10 to 40 us for each range of 100 KiB that is not cached. Requests with blocks should be
 * sorted by file and offset. Checks and destinations are ignored. */
void fffs_prefetch(const fffs_request *requests, size_t count);

/* Announces a batch of this many requests and bytes, so that sleeping helper threads wake up meanwhile. Only a hint:
 * no batch has to follow. */
void fffs_engine_expect(size_t count, uint64_t bytes);

/* Selects the backend of this process: "uring", "aio", or "pread", the initial one. Returns 0; -EINVAL for another
 * name; or -errno if the kernel or a sandbox refuses it. After an error the backend is the same as before. */
int fffs_engine_select(const char *name);

/* Returns the name of the selected backend, a constant string. */
const char *fffs_engine_name(void);

/* Sets or returns how many threads, the caller included, may take part in a batch of hot data; at least 1. */
int fffs_engine_set_threads(int threads);
int fffs_engine_threads(void);

/* Returns the numbers of idle I/O contexts (rings, AIO contexts) and of helper threads, for tests that find leaks. */
void fffs_engine_usage(int32_t *contexts, int32_t *threads);

/* ---------------------------------------------------------------- objects over HTTP (fetch.c, objects.c) */

/* The fd of a request that names object number n is FFFS_OBJECT_FD - n. */
enum { FFFS_OBJECT_FD = -2 };

/* The longest ETag, and the longest date of Last-Modified; bytes of the text of an error, with the final 0; the most connections
 * of a batch. */
enum { FFFS_ETAG_MAX = 511, FFFS_DATE_MAX = 63, FFFS_HTTP_TEXT = 512, FFFS_HTTP_CONNECTIONS = 256 };

/* Returns the version of libcurl, a constant string, or NULL: none, or one before 7.66, is installed. */
const char *fffs_http_version(void);

/* Sets for the whole process how long a request may fail until that is final, how many connections a batch may have, whether
 * redirections may lead from http to http, and whose certificates are trusted: the authorities of a file and of a folder (NULL: the
 * system's), and with them the usual ones, if fffs_http_adds_usual. Returns 0 or -ENOMEM. */
int fffs_http_configure(double seconds, int32_t connections, int32_t allow_plain, const char *file,
                        const char *folder, int32_t usual_too);

/* Returns whether libcurl, which is loaded, can have the usual authorities besides others: its connections are OpenSSL's. These are the
 * system's, or those of SSL_CERT_FILE and SSL_CERT_DIR. */
int32_t fffs_http_adds_usual(void);

/* Makes an object of an URL, which may be signed, and is never part of a message. Returns its number, which is valid until
 * fffs_object_close, or -ENOMEM. Its version is the one that the first answer tells, unless fffs_object_expect sets it. */
int32_t fffs_object_open(const char *url);
void fffs_object_close(int32_t number);

/* Sets the version that all answers must be of. "" and -1: unknown. Returns 0; -EBADF: closed; or -EINVAL: too long. */
int fffs_object_expect(int32_t number, const char *etag, const char *modified, int64_t size);

/* Says that a store has the object, not a web server: what it calls the encoding of an object is a word that was stored with its
 * bytes, and no proxy compresses parts of them. Returns 0 or -EBADF. */
int fffs_object_set_stored(int32_t number);

/* Replaces the URL, for requests that begin later. Returns 0, -EBADF or -ENOMEM. */
int fffs_object_set_url(int32_t number, const char *url);

/* Has requests that the server refuses wait for fffs_object_set_url, within their deadline, unless the URL is new: the caller
 * will set one soon after it sees refused in fffs_object_state, even if it is the same. Returns 0 or -EBADF. */
int fffs_object_set_renewable(int32_t number);

/* What is known of an object. */
typedef struct {
    int64_t size;                      /* -1: unknown */
    uint64_t requests, retries, bytes; /* of HTTP */
    uint64_t hits, refetched;          /* records that the cache had; records that were damaged there */
    int32_t refused;                   /* whether requests wait for another URL */
    int32_t http_status;               /* of the last failure; 0: there was none, or no answer */
    char text[512]; /* of the last failure, from the server or libcurl; may have any bytes, but no URL of ours */
    char etag[512];
    char modified[64];
} fffs_object_state;

/* Returns 0 with what is known of an object, or -EBADF. */
int fffs_object_look(int32_t number, fffs_object_state *state);

/* What reading objects cost this process. A child of fork goes on with the sums of its parent. */
typedef struct {
    uint64_t requests;        /* of HTTP that ended */
    uint64_t retries;         /* those of them that repeated one that brought nothing */
    uint64_t errors;          /* those of them that failed; an object that does not exist is an answer */
    uint64_t fetched;         /* bytes of objects that they brought */
    uint64_t asked;           /* bytes of records and metadata that were asked for */
    uint64_t hits;            /* those of them that a cache had at once */
    uint64_t damaged_records; /* records that were fetched once more, because their checksum differed */
    uint64_t damaged_blocks;  /* blocks of caches that differed from the checksum there, and were dropped */
} fffs_object_totals;

/* Returns the sums since the process began. Each is consistent in itself only, if other threads read. */
void fffs_object_totals_look(fffs_object_totals *found);

/* Bytes of a block of a cache, and of what precedes the entries of its map. */
enum { FFFS_CACHE_BLOCK = 4096, FFFS_CACHE_HEAD = 4096 };

/* Gives an object of known size a cache: data_fd is a sparse file for its bytes, and map_fd, from FFFS_CACHE_HEAD on, has a u32
 * for each block of it: 0, or its CRC-32C (0xffffffff for 0); then a u64 that changes whenever damage is found. Both stay the caller's, and must stay open until the object is
 * closed. limit: how many bytes this process may add; keep_free: how many bytes of the file system stay free in any case. Returns
 * 0; -EBADF; -EINVAL; or -ENOMEM. */
int fffs_object_use_cache(int32_t number, int data_fd, int map_fd, int64_t limit, int64_t keep_free);

/* Sets how many bytes all caches of this process and of its children of fork may add together from now on; at first, there is no
 * limit. Returns 0 or -ENOMEM. */
int fffs_object_cache_budget(int64_t bytes);

/* Blocks that the map of a cache says are there, and those of them that were damaged. */
typedef struct {
    uint64_t blocks, damaged;
} fffs_cache_checked;

/* Compares the blocks of a part of a cache with their checksums, and removes those from the map that differ or cannot be read.
 * data_fd, map_fd, size: as for fffs_object_use_cache; offset: a multiple of FFFS_CACHE_BLOCK. Adds to *sums. Others may use the
 * cache meanwhile. Returns 0; -ENOMEM; or -errno of writing the map. */
int fffs_cache_check(int data_fd, int map_fd, int64_t size, int64_t offset, int64_t length, fffs_cache_checked *sums);

/* As fffs_read_batch, for requests that name objects, and waits as long as that takes. *cancel: another thread may set it to end
 * this one within a tenth of a second; or NULL. Statuses are also: -EACCES, -ENOENT: the server says so; -ESTALE: it has another
 * version now; -EPROTO: its answers are not what was asked for; -EKEYREJECTED: its certificate is not accepted; -ECANCELED.
 * Damaged bytes are fetched once more. May also return -ELIBACC: there is no libcurl. */
int fffs_remote_read_batch(fffs_request *requests, size_t count, const int32_t *cancel);

/* Whether the caches have all bytes of these requests; wait: 0: as far as this process knows. */
int fffs_remote_is_hot(const fffs_request *requests, size_t count, int32_t wait);

/* Starts to read records of objects that will be asked for soon, and that no cache has: threads read and check them into memory,
 * at most 256 MiB in a process, and fffs_remote_read_batch takes them from there if it asks for the same checksums. Returns at
 * once, and reports no error. The requests may be freed. */
void fffs_remote_prefetch(const fffs_request *requests, size_t count);

/* Returns how many batches in advance are useful, 1 to 4: the number grows when a batch was not there in time. */
int32_t fffs_remote_depth(void);

/* Reads header lines into an answer, and judges it, for tests. lines: each ends with a line feed. Returns as
 * fffs_answer_judge in http_answer.h. */
int fffs_answer_test(const char *lines, int32_t status, const char *etag, const char *modified, int64_t size,
                     int32_t stored, int64_t start, int64_t end, int64_t *size_told);

/* ---------------------------------------------------------------- injected faults (fault.c) */

/* System calls and completions of the engine that can be made to fail. */
enum {
    FFFS_FAULT_NONE = 0,
    FFFS_FAULT_PREAD = 1,          /* pread and preadv2: result is -errno, or a short count */
    FFFS_FAULT_URING_SETUP = 2,    /* io_uring_queue_init */
    FFFS_FAULT_URING_SUBMIT = 3,   /* io_uring_submit, also with wait */
    FFFS_FAULT_URING_COMPLETE = 4, /* the res of one completion */
    FFFS_FAULT_URING_GET_SQE = 5,  /* any result: the ring is full */
    FFFS_FAULT_AIO_SETUP = 6,      /* io_setup */
    FFFS_FAULT_AIO_SUBMIT = 7,     /* io_submit */
    FFFS_FAULT_AIO_COMPLETE = 8,   /* the res of one event */
    FFFS_FAULT_AIO_WAIT = 9,       /* io_getevents */
    FFFS_FAULT_MEMORY = 10,        /* an allocation */
    FFFS_FAULT_THREAD = 11,        /* pthread_create */
    FFFS_FAULT_CLOCK = 12,         /* a reading of a clock: result seconds are added */
    FFFS_FAULT_NOWAIT = 13,        /* preadv2 with RWF_NOWAIT, after FFFS_FAULT_PREAD */
    FFFS_FAULT_FILE_SYSTEM = 14,   /* the result of fffs_file_system */
    FFFS_FAULT_PWRITE = 15,        /* pwrite: result is -errno, or a short count */
    FFFS_FAULT_ATTRIBUTES = 16     /* setting a mode or time: result is -errno */
};

/* A result for fffs_fault_set that stalls: the operation waits until all faults are ended, and then runs normally. */
enum { FFFS_FAULT_HOLD = -1000000 };

/* Makes the nth operation of a kind (1 is the next one) return result instead of its own, and the count - 1 operations
 * after it. Each kind has its own fault; FFFS_FAULT_NONE ends all. A non-negative result of a read or write limits
 * it to that many bytes, which are really read or written. For tests; unused it costs one predictable branch per operation. */
void fffs_fault_set(int kind, int64_t nth, int64_t count, int32_t result);

/* Returns how many operations of a kind there were from fffs_fault_set of that kind to the end of all faults. */
int64_t fffs_fault_seen(int kind);

/* Returns how many operations FFFS_FAULT_HOLD stalls at the moment. */
int32_t fffs_fault_held(void);

/* ---------------------------------------------------------------- the tree of names (tree*.c) */

/* An immutable tree of names as flat arrays, also the layout of a packed folder's trailer (FORMATS.md). The caller
 * owns the arrays.
 *
 * Entries are names in directories. The entries of a directory are contiguous and sorted by bytes. Nodes are what
 * entries refer to. Node 0 is the root directory; a directory's node number is greater than its parent's. */
typedef struct {
    const int64_t *mtime;         /* [nodes] nanoseconds since 1970 */
    const uint32_t *nlink;        /* [nodes] as in stat(2) */
    const uint32_t *ref;          /* [nodes] file: record; directory: first entry; symlink: offset of its target */
    const uint32_t *count;        /* [nodes] directory: number of entries; symlink: length of its target; file: 0 */
    const uint32_t *parent;       /* [nodes] directory: its parent (the root: itself); others: 0 */
    const uint16_t *mode;         /* [nodes] as in stat(2), type included */
    const uint32_t *name_offsets; /* [entries + 1] into names */
    const uint32_t *entry_nodes;  /* [entries] */
    const uint8_t *names;         /* [names_size] without separators */
    const uint8_t *targets;       /* [targets_size] symlink targets */
    uint64_t nodes;
    uint64_t entries;
    uint64_t names_size;
    uint64_t targets_size;
} fffs_tree;

/* Limits in bytes, as in Linux: of a name, of a path (here from the root, so no directory is more than 2048 deep), and
 * of the target of a symbolic link. */
enum { FFFS_NAME_MAX = 255, FFFS_PATH_MAX = 4095, FFFS_TARGET_MAX = 4095 };

/* Checks everything that fffs_tree_lookup and code that walks the arrays rely on. Files may refer to records below
 * records. Returns 0; -ENOMEM; or -EINVAL, and then *why (a constant string) says what is wrong, and *where is the
 * node or entry. */
int fffs_tree_validate(const fffs_tree *tree, uint64_t records, const char **why, uint64_t *where);

/* Finds the node of a name in directory node, by binary search. The tree must be valid. Returns 0 with *found;
 * -ENOENT; or -ENOTDIR. */
int fffs_tree_lookup(const fffs_tree *tree, uint32_t node, const uint8_t *name, size_t length, uint32_t *found);

/* Limits for a path: of symbolic links that are followed, as in Linux; and of names that are looked up, twice as many
 * as the longest path has. Links may share long targets, and each costs a walk of its whole target. */
enum { FFFS_LINKS_MAX = 40, FFFS_STEPS_MAX = FFFS_PATH_MAX };

/* Finds the node at a path from the root. Follows symbolic links that stay inside the tree: relative ones, whose ".."
 * do not leave it. ".." in the path itself is not a name. Returns 0 with *found; -ENOENT; -ELOOP. The tree must be
 * valid. */
int fffs_tree_follow(const fffs_tree *tree, const uint8_t *path, size_t length, uint32_t *found);

/* Arranges entries, given in any order, in the arrays of a tree.
 *
 * In: for each entry the node of its directory, its own node and its name; for each node whether it is a directory.
 * Node 0 is the root. Out: rank[nodes], the node's number in the tree; entry_nodes, name_offsets and names in the
 * order of the tree. Returns 0; -ENOMEM; -EINVAL if an entry's numbers are out of range, or if something is not
 * reachable through directories; -ELOOP if a directory has two names. Does not look for duplicate names:
 * fffs_tree_validate does. */
int fffs_tree_order(uint64_t entries, uint64_t nodes, const uint32_t *entry_parent, const uint32_t *entry_node,
                    const uint32_t *in_name_offsets, const uint8_t *in_names, const uint8_t *is_directory,
                    uint32_t *rank, uint32_t *entry_nodes, uint32_t *name_offsets, uint8_t *names);

/* A tree of a union, and how many records, bytes of targets and nodes those before it have. */
typedef struct {
    const fffs_tree *tree;
    uint64_t first_record;
    uint64_t first_target;
    uint64_t first_node;
} fffs_merge_source;

/* A name that one of an earlier tree hides: the folder of the union, the number of the tree, and the entry there. */
typedef struct {
    uint32_t folder;
    uint32_t source;
    uint32_t entry;
} fffs_hidden_name;

/* A union: the arrays of a tree, which have room for all trees together, and what is used of them. The targets are
 * those of all trees, joined. */
typedef struct {
    int64_t *mtime;
    uint32_t *nlink;
    uint32_t *ref;
    uint32_t *count;
    uint32_t *parent;
    uint16_t *mode;
    uint32_t *name_offsets;
    uint32_t *entry_nodes;
    uint8_t *names;
    fffs_hidden_name *hidden_names; /* [hidden_room] the first, breadth first */
    uint64_t hidden_room;
    uint64_t nodes, entries, names_size; /* out */
    uint64_t hidden; /* out: how many names are hidden, which may be more than there is room for */
} fffs_merged;

/* Merges valid trees: folders of one path become one, and the first tree that has a path determines what it is. What is
 * below a hidden folder is not counted as hidden. Returns 0; -ENOMEM; -EINVAL if there is no tree; or -EOVERFLOW if
 * there are 2**32 - 1 nodes, entries or bytes of names, or a record or an offset of a target does not fit 32 bits. */
int fffs_tree_merge(const fffs_merge_source *sources, size_t count, fffs_merged *out);

/* Lists the nodes that are no directories, depth first, the names of each directory in their order, and each node once.
 * leaves has room for all nodes. The tree must be valid. Returns 0 with *count, or -ENOMEM. */
int fffs_tree_leaves(const fffs_tree *tree, uint32_t *leaves, uint64_t *count);

/* ---------------------------------------------------------------- images for the kernel (erofs.c) */

/* A tree, and where its records are: record i is the bytes from starts[i] to ends[i] of a device, which is a file with
 * records. */
typedef struct {
    const fffs_tree *tree;
    const int64_t *starts; /* [records] */
    const int64_t *ends;   /* [records] */
    const int64_t *firsts; /* [devices] the first record of each device, ascending from 0 */
    const int64_t *sizes;  /* [devices] in bytes */
    uint32_t devices;      /* at least 1 */
    uint32_t block_bits;   /* 9 or 12: the logarithm of the block size, at multiples of which all files must begin */
    uint32_t uid, gid;     /* of everything */
    uint32_t umask;        /* removed from all modes but those of symbolic links */
    uint32_t root_umask;   /* removed from that of the root, too */
    int fd;                /* an empty file */
} fffs_erofs;

/* Writes an EROFS image of a valid tree, without the contents of its files, for which it refers to the devices. Returns
 * 0; -EINVAL if a file does not begin at a multiple of the block size, or has a block number of 32 bits or more; -E2BIG
 * if there are too many devices; -EFBIG if the image would be too large; -ENOMEM; or -errno of writing. */
int fffs_erofs_write(const fffs_erofs *in);

/* ---------------------------------------------------------------- ffrecord's packed folders (packed_pickle*.c) */

/* The content of a packed folder's pickle. Decode first with NULL pointers, to get the sizes, and then with arrays of
 * these sizes. The caller owns the arrays. */
typedef struct {
    uint32_t *entry_parent; /* [entries] number of the dictionary that has this name; 0 is the root */
    uint32_t *entry_child;  /* [entries] number of the dictionary that it refers to, or 0 for a file */
    int64_t *entry_record;  /* [entries] the file's record, or -1 */
    uint32_t *name_offsets; /* [entries + 1] */
    uint8_t *names;         /* [names_size] as in the file system: lone surrogates are bytes again */
    uint64_t entries;       /* out */
    uint64_t names_size;    /* out */
    uint64_t directories;   /* out: dictionaries, the root included */
    uint64_t consumed;      /* out: length of the pickle, STOP included */
} fffs_packed_pickle;

/* Decodes a pickle of nested OrderedDicts of names to record numbers, and refuses everything else. Builds no objects,
 * accepts no global but collections.OrderedDict, and needs memory of at most a multiple of size. Returns 0; -ENOMEM;
 * or -EINVAL, and then *why (a constant string) and *where (offset in data) say what was refused. */
int fffs_packed_pickle_decode(const uint8_t *data, size_t size, fffs_packed_pickle *out, const char **why,
                              uint64_t *where);

/* Encodes a valid tree as such a pickle. A symbolic link to a file in the tree becomes a name of that file's record;
 * other symbolic links are left out. Call it first with NULL, to get the size, and then with an array of this size.
 * Returns the size in bytes. */
uint64_t fffs_packed_pickle_encode(const fffs_tree *tree, uint8_t *out);

/* ---------------------------------------------------------------- files that change (watch.c) */

/* Returns the type of the file system of fd as in statfs(2) (<linux/magic.h>), or -errno. */
int64_t fffs_file_system(int fd);

/* The state of a file when it was opened, before anything of it was read. */
typedef struct {
    int64_t size;
    int64_t mtime; /* seconds, and nanoseconds beyond them */
    int64_t mtime_nanoseconds;
    uint64_t device;
    uint64_t inode; /* 0: neither is compared, because the file system makes inode numbers up */
} fffs_stamp;

/* Checks that a file without checksums, open as fd, can be assumed to have the same bytes as before: its size and
 * modification time are the same, and it is the same file. ctime is not compared, because a new name or mode changes it
 * as well. Returns 0; -ESTALE if it changed; or -errno. */
int fffs_unchanged(int fd, const fffs_stamp *stamp);

/* ---------------------------------------------------------------- verified range reads (store.c) */

/* One open file of a store, with its index. The caller owns the arrays and the descriptor. They must outlive the
 * store. */
typedef struct {
    const int64_t *starts;            /* [records] offset of each record */
    const int64_t *ends;              /* [records] offset after it */
    const uint32_t *checksums;        /* [records], or NULL when check is FFFS_CHECK_NONE */
    const uint32_t *big_records;      /* [bigs] records that have block checksums, ascending */
    const uint64_t *big_first_blocks; /* [bigs + 1] first block of each in block_checksums */
    const uint32_t *block_checksums;  /* CRC-32 of each FFFS_BLOCK bytes of those records */
    uint64_t records;
    uint64_t bigs;
    fffs_stamp stamp; /* of a file without checksums */
    int32_t fd;
    uint32_t check;
    uint32_t keeps_times; /* 1: fstat shows each change of the content at once, by any writer; 0: it may not */
} fffs_file;

typedef struct fffs_store fffs_store;

/* Makes a store over files, whose records are numbered consecutively. The caller frees *store when no call on it is
 * running, and closes the descriptors afterwards. Returns 0; -ENOMEM; or -errno, and then *failed is the position of
 * the file whose fstat failed. */
int fffs_store_new(const fffs_file *files, size_t count, fffs_store **store, size_t *failed);
void fffs_store_free(fffs_store *store);

/* Flags of fffs_store_read. */
enum {
    FFFS_READ_NOWAIT = 1,     /* return -EAGAIN instead of waiting for a disk or checking a whole large record */
    FFFS_READ_UNVERIFIED = 2, /* return the bytes as they are in the file, without checks */
    FFFS_READ_LOCAL =
        4 /* of an object: return -EAGAIN instead of asking its store or checking a whole large record */
};

/* Reads up to length bytes of a record from start on into dest. Returns only verified bytes: the first read of a
 * record reads and checks all of it, or, if it has block checksums, all of the blocks in the range. When a source file
 * changes, its records are checked again; until it is resting, at each read. A record larger than a block is read
 * completely only once: then the store has checksums of its blocks (8 bytes a block).
 *
 * Returns the number of bytes read (0 at or after the record's end); -EAGAIN; -EBADMSG: wrong checksum; -ENODATA: the
 * file ends inside the record; -ERANGE: no such record; -ESTALE: the file does not stop changing, or has no checksums
 * and was changed since it was opened; or -errno. */
int64_t fffs_store_read(fffs_store *store, uint64_t record, uint64_t start, uint64_t length, uint8_t *dest,
                        int flags);

/* Returns the number of records in all files. */
uint64_t fffs_store_records(const fffs_store *store);

/* Returns a record's length according to the index, or -ERANGE. */
int64_t fffs_store_length(const fffs_store *store, uint64_t record);

/* Returns 1 if all of the record has been verified and no change of its file was noticed since, else 0. */
int fffs_store_verified(fffs_store *store, uint64_t record);

/* Returns the number of records with bytes for which fffs_store_verified returns 1. Looks at every one. */
uint64_t fffs_store_count_verified(fffs_store *store);

/* ---------------------------------------------------------------- files made of frames (frames.c) */

/* TFRecord: u64 length, its masked CRC-32C, data, the data's masked CRC-32C. OFRecord: i64 length, data. */
enum { FFFS_FRAMES_TFRECORD = 1, FFFS_FRAMES_OFRECORD = 2 };

/* What is wrong with a frame. */
enum {
    FFFS_FRAME_GOOD = 0,
    FFFS_FRAME_CUT_HEAD = 1,        /* the file ends inside its head */
    FFFS_FRAME_CUT = 2,             /* it extends past the end of the file */
    FFFS_FRAME_LENGTH_CHECKSUM = 3, /* the checksum of its length is wrong */
    FFFS_FRAME_LENGTH_NEGATIVE = 4,
    FFFS_FRAME_EMPTIES = 5 /* more than FFFS_EMPTY_FRAMES empty ones in a row: zeros, not frames */
};

/* The most empty frames in a row that are accepted without a checksum. */
enum { FFFS_EMPTY_FRAMES = 65536 };

/* The state of a scan. */
typedef struct {
    int64_t position; /* in, out: offset of the next frame, or of the wrong one */
    int64_t size;     /* of the file */
    uint64_t empty;   /* in, out: empty frames just before position; 0 at first */
    uint64_t length;  /* out: length of the data, according to the last frame */
    int32_t fd;
    int32_t kind;  /* FFFS_FRAMES_* */
    int32_t check; /* 0: do not compare the checksums of TFRecord's lengths */
    int32_t fault; /* out: FFFS_FRAME_*, what is wrong with the frame at position */
} fffs_frames;

/* Finds at most room frames from position on, and sets *count. Sets for each the offset of the end of its data and,
 * for TFRecord, the unmasked CRC-32C of its data; for OFRecord checksums may be NULL. Data begins at position + 12 or
 * 8, and then as far behind the data before it as tail and head are long. Returns 0, with frames->fault set if the
 * scan cannot continue; -ENODATA if the file became shorter than size; -ENOMEM; or -errno. */
int fffs_frames_scan(fffs_frames *frames, int64_t *ends, uint32_t *checksums, size_t room, size_t *count);

/* ---------------------------------------------------------------- messages of names and lists (features.c) */

/* tf.train.Example (or the context of a SequenceExample), a SequenceExample's feature lists, OneFlow's OFRecord. */
enum { FFFS_SCHEMA_EXAMPLE = 1, FFFS_SCHEMA_FEATURE_LISTS = 2, FFFS_SCHEMA_OFRECORD = 3 };

/* An entry of the map. Its name is a range of data, not checked to be UTF-8, and may occur again. */
typedef struct {
    uint64_t name_begin, name_end;
    uint64_t first, count; /* its features: one, unless it is a feature list */
} fffs_feature_entry;

/* A list. first is the number of its first item (lists of bytes), or the offset of its numbers in the values. */
typedef struct {
    uint64_t kind; /* the field's number in Feature, or 0 */
    uint64_t first, count;
} fffs_feature;

/* The sizes of the tables of a message. */
typedef struct {
    uint64_t entries;
    uint64_t features;
    uint64_t items;       /* of lists of bytes */
    uint64_t values_size; /* of lists of numbers, in bytes */
    uint64_t sequence;    /* 1: the message has feature lists, so it is not an Example */
} fffs_features;

/* Decodes a message. Call it first with tables NULL to get the sizes, at most a multiple of the message's. Then call
 * it with these sizes in *out and with tables for, one after another: the entries; the features; uint64[2] for each
 * item, its begin and end in data; the values. Numbers have the type of the kind; each list begins at a multiple of 8.
 * Returns 0; or -EINVAL, and then *why (a constant string) and *where (offset in data) say what was refused. */
int fffs_features_decode(const uint8_t *data, size_t size, int schema, uint64_t *tables, fffs_features *out,
                         const char **why, uint64_t *where);

/* Encodes count numbers as protobuf's varints into data, which has room for ten bytes each. Returns their size. */
size_t fffs_varints_encode(const int64_t *values, size_t count, uint8_t *data);

/* ---------------------------------------------------------------- msgpack (msgpack.c) */

/* Why msgpack is refused: it ends too early; a container claims more values than there are bytes; no value has this
 * code; its objects would take more memory than permitted. */
enum { FFFS_MSGPACK_TRUNCATED = 1, FFFS_MSGPACK_CLAIM = 2, FFFS_MSGPACK_CODE = 3, FFFS_MSGPACK_MEMORY = 4 };

/* Checks the first value in data, with all values in it, before a library makes objects of it, which must not take more
 * than memory bytes by an estimate. Bytes after it are not looked at, and texts need not be UTF-8. Allocates nothing.
 * The caller owns data. Returns 0 or FFFS_MSGPACK_*. */
int fffs_msgpack_check(const uint8_t *data, size_t size, uint64_t memory);

/* ---------------------------------------------------------------- listing folders (scan.c) */

/* The status of a file or folder, from stat(2). The times are 0 of a folder that Btrfs shows in place of a subvolume. */
typedef struct {
    int64_t mtime, ctime; /* seconds, and nanoseconds beyond them */
    uint32_t mtime_ns, ctime_ns;
    uint64_t device, inode;
    int64_t size;
    uint32_t mode; /* 0 if there was an error */
    uint32_t links;
    uint32_t target; /* length of a symbolic link's target */
    int32_t error;   /* of stat or readlink, as -errno, or 0 */
} fffs_status;

/* The entries of all folders that were listed, those of a folder together and sorted by the bytes of their names. The
 * caller may change the statuses. Owned by the scan; valid until its next call. */
typedef struct {
    uint32_t *parents;      /* [entries] the folder of each, by the number that it was listed under */
    uint32_t *name_offsets; /* [entries + 1] */
    uint8_t *names;         /* [name_offsets[entries]] */
    fffs_status *statuses;  /* [entries] */
    uint8_t *targets;       /* [targets_size] of symbolic links, in the order of the entries */
    uint64_t entries;
    uint64_t targets_size;
} fffs_scan_columns;

typedef struct fffs_scan fffs_scan;

/* Begins a scan with no entries, which the caller frees with fffs_scan_free. A scan is used by one thread at a time.
 * Freeing NULL does nothing. Returns 0 or -ENOMEM. */
int fffs_scan_new(fffs_scan **scan);
void fffs_scan_free(fffs_scan *scan);

/* A range of names: those from first on, and before stop. A stop without bytes is behind all names. */
typedef struct {
    const uint8_t *first, *stop;
    uint32_t first_size, stop_size;
} fffs_name_range;

/* Lists the open folder fd as number node, and stores its own status. Names outside of the range are not listed, and
 * their status is not asked for. An entry whose status cannot be had is listed with the error. Returns 0; -ENOMEM; -EOVERFLOW if there are 2**32 - 1 entries or bytes of names; or -errno. */
int fffs_scan_folder(fffs_scan *scan, int fd, uint32_t node, const fffs_name_range *range, fffs_status *status);

/* A folder that is an entry of another, listed by itself. */
typedef struct {
    fffs_scan *scan; /* owned; NULL: the folder could not be listed, and fffs_scan_folder tells why */
    fffs_status status;
    uint64_t entries, folders, names_size;
    uint64_t failures; /* entries whose status has an error */
} fffs_child;

/* Lists folders that are entries of a parent, fd: children[k] becomes that of entries[k]. Its scan is freed by the
 * caller. Threads may do so at once with one parent, while nothing changes it. */
void fffs_scan_children(const fffs_scan *parent, const uint32_t *entries, uint64_t count, int fd,
                        fffs_child *children);

/* Columns of a walk, one item for each name. A cut before the name: 0 is impossible, because it is the first one in its
 * folder; 1 is possible; 2 is good, because it is a folder. */
typedef struct {
    int64_t *weights, *sizes, *depths;
    uint64_t *digests;
    uint8_t *cuts;
    uint8_t *paths; /* relative to the parent, one after the other */
    int64_t *ends;  /* of the paths */
} fffs_walk_columns;

/* Sets the columns of children of a parent, its entries, which have no folders in them: each child before its entries.
 * Weights and digests are as of the functions below, with those of the folders given; the folders are at one depth. */
void fffs_scan_walk(const fffs_scan *parent, const uint32_t *entries, const fffs_child *children, uint64_t count,
                    const uint64_t *paths, const uint64_t *digests, int64_t each, int64_t depth,
                    const fffs_walk_columns *out);

/* Numbers of entries: those that are folders, and those whose status has an error. */
typedef struct {
    uint64_t folders, failures;
} fffs_weighed;

/* Sets, for each entry, sizes[i] to that of a file, or 0, and weights[i] to the same plus each, if a tree can hold the
 * entry. folders gets the entries that are folders, and has room for all. */
void fffs_scan_weigh(const fffs_scan *scan, int64_t each, int64_t *sizes, int64_t *weights, uint32_t *folders,
                     fffs_weighed *found);

/* Returns the first entry at or after from, and below to, that is a folder; or to. */
uint64_t fffs_scan_next_folder(const fffs_scan *scan, uint64_t from, uint64_t to);

/* Sets, for each entry at or after from and below to, paths[i - from] to a digest of its path, if folder is that of its
 * folder's path, and digests[i - from] to one of path, mode, time of modification and, except for folders, size. */
void fffs_scan_digest(const fffs_scan *scan, uint64_t from, uint64_t to, uint64_t folder, uint64_t *paths,
                      uint64_t *digests);

/* Returns the columns. */
fffs_scan_columns *fffs_scan_get(fffs_scan *scan);

/* Returns 1 if an open file has the status of a scan, or 0. A writer can set mtime back, but not ctime. An inode number
 * of 0 is not compared, where numbers are not reliable: opening the file by its name, without following links, ensures
 * that it is the file of that name. */
int fffs_is_same(int fd, const fffs_status *then);

/* Returns 0 if an open file has no byte at offset; -EOVERFLOW if it has one; or -errno. The size of a file in /proc is 0, and
 * some file systems do not know the sizes of their files. */
int fffs_ends_at(int fd, int64_t offset);

/* ---------------------------------------------------------------- the names in an archive (names.c) */

/* What a note says. The caller makes a line of it. */
enum {
    FFFS_NOTE_WARNING = 1, /* the member is left out or changed */
    FFFS_NOTE_TIME = 2,    /* warning: its time is far */
    FFFS_NOTE_SLASH = 3,   /* warning: the slash at the beginning of a name is left out; only the first is noted */
    FFFS_NOTE_REFUSED = 4, /* from here on errors: the member cannot be packed */
    FFFS_NOTE_MEMORY = 5,  /* the names would take too much memory */
    FFFS_NOTE_NAMES = 6,   /* more names than a tree can hold */
    FFFS_NOTE_DAMAGED = 7, /* the header of the member at position is invalid */
    FFFS_NOTE_CUT = 8,     /* the archive ends too early */
    FFFS_NOTE_SPARSE = 9,  /* the member is a sparse file */
    FFFS_NOTE_VOLUME = 10  /* the archive is one of several volumes */
};

/* What is between the two strings of a note. */
enum {
    FFFS_BETWEEN_NOTHING = 0,
    FFFS_BETWEEN_WHAT = 1,  /* what was left out, the number that the caller gave to it */
    FFFS_BETWEEN_OTHER = 2, /* another path */
    FFFS_BETWEEN_NUMBER = 3 /* high and low, a number of 128 bits */
};

/* Bytes of a path that are noted, and notes that are kept. */
enum { FFFS_NOTED = 256, FFFS_NOTES = 64 };

/* A warning or an error. */
typedef struct {
    int32_t kind;    /* FFFS_NOTE_* */
    int32_t between; /* FFFS_BETWEEN_* */
    const char *before, *after;
    uint64_t position;
    int64_t high;
    uint64_t low;
    uint32_t what;
    uint64_t path_size, other_size; /* may be larger than FFFS_NOTED */
    uint8_t path[256], other[256];
} fffs_note;

/* A member of an archive. Times are limited to what a tree can hold; far is 1 if the real one is beyond that. */
typedef struct {
    const uint8_t *name, *target;
    uint64_t name_size, target_size;
    int64_t place; /* of its bytes; its meaning is the caller's */
    int64_t size;
    int64_t mtime;
    uint32_t mode; /* permissions */
    uint32_t what; /* what it is, if it is left out; its meaning is the caller's */
    int32_t far;
    uint8_t kind; /* as in tar(5): '0' file, '1' hard link, '2' symbolic link, '5' folder; others are left out */
} fffs_member;

/* What a name stands for. */
typedef struct {
    int64_t mtime;
    int64_t place;  /* symbolic link: of its target in targets; folder: not 0 if it has entries */
    int64_t size;   /* symbolic link: of its target; folder: 0 if it is no member itself, and has no mode and time */
    uint32_t mode;  /* with the type; 0: left out */
    uint32_t links; /* hard links that were made to it */
} fffs_content;

/* The names of an archive: what unpacking it would give. */
typedef struct {
    uint32_t *parents;      /* [entries] of each, its folder: the entry + 1; 0: the root; UINT32_MAX: replaced */
    uint32_t *owners;       /* [entries] the entry whose content it has: itself, unless it is a hard link */
    uint32_t *name_offsets; /* [entries + 1] */
    uint8_t *names;
    fffs_content *contents; /* [entries] */
    uint8_t *targets;
    uint64_t entries, targets_size;
    fffs_content root;
    int64_t newest; /* the largest time of a member, if timed is 1 */
    int32_t timed;
    int32_t notes_count;
    int64_t room; /* bytes of memory that further names may take: FFFS_NAME_EACH and FFFS_NAME_COPIES of each */
    fffs_note notes[64];
} fffs_names_columns;

/* Bytes of memory for a name with its node, and how many copies of the name itself there are. */
enum { FFFS_NAME_EACH = 160, FFFS_NAME_COPIES = 3 };

typedef struct fffs_names fffs_names;

/* Begins with an empty root. key: random, so that nobody can choose names whose hashes are equal. The caller frees
 * *names. Used by one thread at a time. Returns 0 or -ENOMEM. */
int fffs_names_new(uint64_t key, int64_t room, fffs_names **names);
void fffs_names_free(fffs_names *names);

/* Adds a member. The last of several with one name counts. A hard link is a further name of the content that its target
 * has at this time. The caller takes the notes, and sets notes_count to 0, before there are FFFS_NOTES. Returns 0;
 * -EINVAL: the last note says why; or -ENOMEM. */
int fffs_names_add(fffs_names *names, const fffs_member *member);

/* Frees what only adding needs. Nothing can be added afterwards. */
void fffs_names_end(fffs_names *names);

/* Returns the columns, which are owned by the names. The arrays move when a member is added. */
fffs_names_columns *fffs_names_get(fffs_names *names);

/* ---------------------------------------------------------------- tar archives (tar.c) */

typedef struct fffs_tar fffs_tar;

/* Results of fffs_tar_parse. */
enum {
    FFFS_TAR_MORE = 0,  /* more data is needed */
    FFFS_TAR_NOTES = 1, /* take the notes, and continue */
    FFFS_TAR_END = 2    /* the first block of the end mark was read */
};

/* What fffs_tar_parse did. */
typedef struct {
    uint64_t used;   /* bytes of the data that are not needed any more */
    uint64_t wanted; /* bytes from there on that the next call must have, unless the archive ends before */
    uint64_t skip;   /* bytes behind the data to skip: the rest of a member, which has this name */
    const uint8_t *name;
    uint64_t name_size;
} fffs_tar_step;

/* Begins to read an archive, whose members are added to names. The caller frees *tar, before the names. Used by one
 * thread at a time. Returns 0 or -ENOMEM. */
int fffs_tar_new(fffs_names *names, fffs_tar **tar);
void fffs_tar_free(fffs_tar *tar);

/* Parses the next bytes of the archive: those that the last call did not use, and more. last: nothing follows them.
 * The place of a file is its offset in the archive; what is left out is its type in tar(5). Returns FFFS_TAR_*;
 * -EINVAL: the last note says why; or -ENOMEM. */
int fffs_tar_parse(fffs_tar *tar, const uint8_t *data, size_t size, int last, fffs_tar_step *step);

/* Returns 1 if a block of 512 bytes is a header: its checksum is right, and it has the magic number of POSIX and GNU;
 * else 0. old: also if it is a valid one from before these, or the label of a volume. size: of the file, or -1 if it is not
 * known. */
int fffs_tar_is_header(const uint8_t *block, int64_t size, int old);

/* ---------------------------------------------------------------- copying with checksums (copy.c) */

/* Copies count files of the open folder folder_fd to out_fd, a new file, and computes their CRC-32. offsets[i] is where
 * file i begins there, not before the end of the one before it; zeros come between them. entries[i] is its number in the
 * columns of a scan. None is larger than FFFS_BLOCK. Each must be the same before and after it is read (fffs_is_same).
 * *failed is the number of files that were copied completely; *failed_fd is out_fd if writing failed, or else folder_fd.
 * Returns 0; -ESTALE if an open file is not the same; -ENODATA if it ends too early; -EOVERFLOW if it is longer than its
 * size; or -errno, of opening it, too. */
int fffs_copy_files(const fffs_scan_columns *columns, int folder_fd, const uint32_t *entries, uint64_t count,
                    int out_fd, const int64_t *offsets, uint32_t *checksums, uint64_t *failed, int *failed_fd);

/* Writes count files, none larger than FFFS_BLOCK, to a packed folder, and computes their CRC-32. starts[i] is where
 * file records[i] begins in data. offsets (one more), sizes and checksums are those of all files. Neighbours in the
 * packed folder that follow each other here are written together, with zeros between them. Returns 0; -ENOMEM; or
 * -errno. */
int fffs_put_files(const uint8_t *data, const int64_t *starts, const uint32_t *records, uint64_t count, int out_fd,
                   const int64_t *offsets, const int64_t *sizes, uint32_t *checksums);

/* Copies length bytes from in_fd at in_offset to out_fd at out_offset through a bounded buffer. Computes *crc, their
 * checksum of a kind (FFFS_CHECK_*), and, unless block_crcs is NULL, those of their blocks ([ceil(length /
 * FFFS_BLOCK)]). *failed_fd is the descriptor whose call failed. Returns 0; -ENODATA if in_fd ends too early; or
 * -errno. */
int fffs_copy(int in_fd, int64_t in_offset, int out_fd, int64_t out_offset, int64_t length, uint32_t check,
              uint32_t *crc, uint32_t *block_crcs, int *failed_fd);

/* Files that are made from a part of a source, which is in memory. */
typedef struct {
    const fffs_tree *tree;     /* valid */
    const uint32_t *entries;   /* [count] of the tree; their nodes are files */
    const int64_t *starts;     /* [count] offset of each one's record in the source */
    const int64_t *ends;       /* [count] offset after it */
    const uint32_t *checksums; /* [count]; not used if check is FFFS_CHECK_NONE */
    const uint8_t *data;       /* the bytes of the source at offset, up to the largest end */
    int64_t offset;            /* at most the smallest start */
    uint64_t count;
    uint32_t check;     /* FFFS_CHECK_* */
    uint32_t mode_mask; /* the bits of modes that are set */
} fffs_new_files;

/* Makes files in the open folder folder_fd, from number *next on: creates each, writes its bytes, sets its mode and
 * time, and closes it. No name of the folder is replaced or followed. A file has mode 0600 until it is complete. *next is
 * the number of the next file. *plain grows by one for each file whose mode or time the file system does not let set.
 * Returns 0 when all are made; -EBADMSG if the checksum of record *next is wrong: it has no file; or -errno of making
 * file *next, which may exist in part. */
int fffs_make_files(const fffs_new_files *files, int folder_fd, uint64_t *next, uint64_t *plain);

/* Writes everything in the file system of fd to disk. Returns 0 or -errno. */
int fffs_syncfs(int fd);

/* Makes the kernel begin to write a file's changes to disk, without waiting for them. Returns 0 or -errno. */
int fffs_start_writing(int fd);

/* Writes a file's dirty pages to disk and waits until they are clean: a later write to one of them through a mapping
 * sets the file's times again. Returns 0 or -errno. */
int fffs_clean_pages(int fd);

/* ---------------------------------------------------------------- the kernel fast path (fastpath*.c) */

/* Threads between the kernel and a FUSE library, which answer the few kinds of hot requests themselves. */
typedef struct fffs_fastpath fffs_fastpath;

/* The settings of a mount. */
typedef struct {
    int32_t fuse_fd;       /* the connection to the kernel */
    int32_t library_fd;    /* one end of a SOCK_SEQPACKET pair; the FUSE library serves the other */
    int32_t threads;       /* hot threads, which answer from memory; at least 1 */
    int32_t cold_threads;  /* limit of cold threads, which wait for disks; at least 1 */
    const uint32_t *lanes; /* [files of the store] the lane of each, below their number; or NULL: all have one lane.
                                 Must live as long as store */
    const uint8_t *forwarded; /* [nodes] not 0: only the library can decode it; or NULL. Must live as long as tree */
    uint32_t uid, gid;        /* the owner of everything */
    uint32_t mode_mask;       /* permission bits to clear */
    uint32_t timeout;         /* seconds for which the kernel may cache names and attributes */
    uint32_t max_readahead;   /* bytes */
    uint32_t max_read;        /* bytes of the largest READ: from a page to 1 MiB, in pages */
    int32_t verify;           /* 0: FFFS_READ_UNVERIFIED */
    int32_t readdirplus_auto; /* let the kernel decide which listings have attributes; 0: all have */
} fffs_fastpath_config;

/* The most reads of a lane, which are those of the files on one disk, that wait at a time: a disk that does not answer
 * leaves threads for others. */
enum { FFFS_FAST_LANE = 32 };

/* The first inode number that no node has: from here on, the library answers. */
#define FFFS_ANSWER_INODES 0x8000000000000000

/* The largest READ that the kernel may send: 256 pages, unless an administrator raised fs.fuse.max_pages_limit. */
enum { FFFS_READ_MAX = 1048576 };

/* How many reads of all files the kernel lets wait for replies, and with how many waiting it stops reading ahead. With
 * its default of 12, 12 reads from a disk that does not answer would keep all others from being sent. */
enum { FFFS_MAX_BACKGROUND = 1024, FFFS_CONGESTION = 768 };

/* Kinds of requests, as fffs_fastpath_stats counts them. */
enum {
    FFFS_FAST_LOOKUP,
    FFFS_FAST_GETATTR,
    FFFS_FAST_READ,
    FFFS_FAST_READDIR,
    FFFS_FAST_READLINK,
    FFFS_FAST_FORGET,
    FFFS_FAST_OTHER,
    FFFS_FAST_FORWARDED,
    FFFS_FAST_KINDS
};

/* Latencies are counted by power of two: bucket b has those from 2^b nanoseconds to twice that. */
enum { FFFS_FAST_BUCKETS = 40 };

typedef struct {
    uint64_t requests[FFFS_FAST_KINDS]; /* by FFFS_FAST_* */
    uint64_t read_bytes;
    uint64_t read_errors;
    uint64_t untold;     /* read errors whose record could not be queued for fffs_fastpath_next_bad */
    uint64_t cold_reads; /* reads that waited for a disk, or for the check of a large record */
    uint64_t read_latency[FFFS_FAST_BUCKETS]; /* reads by latency */
    uint64_t waiting;                         /* cold reads that are queued */
    int32_t threads, cold_threads;            /* threads started; cold ones are started when needed */
} fffs_fastpath_stats_t;

/* Sets FFFS_MAX_BACKGROUND and FFFS_CONGESTION, for which the library has no option, in its reply to FUSE_INIT of
 * length bytes. For mounts without a fast path, which does it itself. */
void fffs_init_set_limits(uint8_t *answer, size_t length);

/* Starts the threads, or fewer if the system refuses more. The caller owns tree, store and both descriptors, which
 * must outlive the fast path and are never closed by it. The caller owns *fastpath until fffs_fastpath_stop. Returns
 * 0; or -errno, and then no message has been read. Not to be used after fork. */
int fffs_fastpath_start(const fffs_fastpath_config *config, const fffs_tree *tree, fffs_store *store,
                        fffs_fastpath **fastpath);

/* Ends the threads and frees everything. Waits at most this many seconds for threads that wait for a disk. Returns 0;
 * or -EBUSY if some still do: then nothing is freed, and the process must end. */
int fffs_fastpath_stop(fffs_fastpath *fastpath, double seconds);

/* Returns a descriptor of the fast path that is readable when one of the next three functions may report something. */
int fffs_fastpath_event_fd(const fffs_fastpath *fastpath);

/* Returns 1 with the next record that could not be read and its -errno, each record once; or 0. */
int fffs_fastpath_next_bad(fffs_fastpath *fastpath, uint64_t *record, int32_t *status);

/* Returns 1 when the kernel has the reply to its first message. Until then it holds all requests. */
int fffs_fastpath_connected(const fffs_fastpath *fastpath);

/* Returns 1 when the kernel has ended the connection: no message will follow. */
int fffs_fastpath_ended(const fffs_fastpath *fastpath);

/* Returns the counters since the start, summed over the threads. */
void fffs_fastpath_stats(fffs_fastpath *fastpath, fffs_fastpath_stats_t *stats);

/* ---------------------------------------------------------------- signals (signals.c) */

/* Makes each of count signals write its number as one byte to fd, and do nothing else. fd is a non-blocking
 * descriptor, owned by the caller, that must stay open as long as the process lives. All signals share it; a later
 * call replaces it. Returns 0 or -errno. */
int fffs_signals_to(int fd, const int32_t *numbers, size_t count);
