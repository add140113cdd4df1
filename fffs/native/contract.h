/* The whole C interface of fffs, read twice: by cffi (glue.py), as the declarations Python calls through, and by the
 * C sources (through fffs.h). So there is no preprocessor here, only declarations.
 *
 * Conventions
 *   - Functions that can fail return 0 or -errno. Nothing sets errno for the caller.
 *   - Memory passed in is the caller's and is used only until the call returns, unless a line says otherwise.
 *   - Every function may be called from any thread, and after fork in parent and child.
 *   - Offsets and lengths are bytes. Integers in files are little-endian, and so is every supported host. */

/* ---------------------------------------------------------------- checksums (crc.c) */

/* Known-answer test of everything this file depends on: libdeflate 1.20 to 1.22 returned wrong CRCs in some
 * builds. Call once when the library is loaded. 0, or -EILSEQ when this machine computes checksums wrongly. */
int fffs_self_test(void);

/* CRC-32 as zlib has it (polynomial 0xEDB88320, start with crc = 0), continued over size bytes. */
uint32_t fffs_crc32(uint32_t crc, const void *data, size_t size);

/* The CRC-32 of A followed by B, from the CRC-32 of each and the length of B. */
uint32_t fffs_crc32_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* ---------------------------------------------------------------- CRC-32C (crc32c.c) */

/* CRC-32C (Castagnoli, polynomial 0x82F63B78; start with crc = 0), continued over size bytes; by the processor's
 * instruction where it has one. Data may be NULL when size is 0. */
uint32_t fffs_crc32c(uint32_t crc, const void *data, size_t size);

/* The CRC-32C of A followed by B, from the CRC-32C of each and the length of B. */
uint32_t fffs_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* As TFRecord stores it: rotated and shifted by a constant, so that the checksum of a checksum is a good one. */
uint32_t fffs_crc32c_mask(uint32_t crc);

/* Known-answer test of fffs_crc32c and fffs_crc32c_combine. 0, or -EILSEQ when this machine computes them wrongly. */
int fffs_crc32c_self_test(void);

/* How it is computed here: "processor", "tables", or "bits" where neither passed its test. A constant. */
const char *fffs_crc32c_name(void);

/* The same as fffs_crc32c without the processor's help, for tests. */
uint32_t fffs_crc32c_by_tables(uint32_t crc, const void *data, size_t size);

/* ---------------------------------------------------------------- pooled memory (buffer.c) */

/* A page-aligned buffer of at least size bytes with unspecified content (never another process's), from a pool
 * that keeps returned buffers with their pages in place: a batch then costs no page faults. NULL when there is no
 * memory. The caller owns it until it passes it to fffs_buffer_give, which accepts NULL. */
void *fffs_buffer_take(size_t size);
void fffs_buffer_give(void *buffer);

/* Bytes held by callers, and bytes idle in the pool. */
void fffs_buffer_usage(uint64_t *taken, uint64_t *idle);

/* ---------------------------------------------------------------- batched reads (engine.c and its parts) */

/* How a record is checked. */
enum { FFFS_CHECK_NONE = 0, FFFS_CHECK_CRC32 = 1, FFFS_CHECK_CRC32C = 2 };

/* A block of a record: the unit that is read in parallel, and that a packed folder stores checksums of. */
enum { FFFS_BLOCK = 1048576 };

/* One record, or one range of a file, to read. */
typedef struct {
    int64_t offset;    /* where in the file */
    int64_t length;    /* how many bytes */
    uint8_t *dest;     /* room for length bytes; NULL: the bytes are only checked and not kept */
    int32_t fd;        /* open for reading until the call returns */
    uint32_t check;    /* FFFS_CHECK_* */
    uint32_t expected; /* the checksum that must come out */
    uint32_t actual;   /* out: the checksum that came out, when everything could be read */
    int32_t status;    /* out: 0; -EBADMSG: checksum differs; -ENODATA: the file ends too early; or -errno */
    uint32_t around;   /* what comes from the disk comes with its whole aligned block of so many bytes; 0: alone */
    uint32_t align;    /* 0, or: past the page cache, as fffs_open_direct said */
    int32_t direct_fd; /* with align: the same file, open as fffs_open_direct does it */
} fffs_request;

/* Opens the file that fd is open for once more, for reads past the page cache (O_DIRECT), whose places in file and
 * memory must be multiples of *align. The caller closes the descriptor. A descriptor, or -errno: -EOPNOTSUPP where
 * the file system does not tell what it wants (Linux before 6.1, most network file systems). */
int fffs_open_direct(int fd, uint32_t *align);

/* Reads count requests, in any order and in parallel, and checks each one. When it returns, no I/O into any dest is
 * in flight, whatever happened. 0: all are good. -EIO: at least one request's status is not 0; the others are good.
 * Anything else (-ENOMEM): the batch could not be run, no status is meaningful. */
int fffs_read_batch(fffs_request *requests, size_t count);

/* The same for one record: 0, or what would be its status. */
int fffs_read_one(int fd, int64_t offset, int64_t length, uint8_t *dest, uint32_t check, uint32_t expected);

/* Asks the kernel to read ranges of files, with the blocks around them, into the page cache, and does not wait for
 * the disk: only a hint. Takes 10 to 40 us for each range of 100 KiB that is not there. Best sorted by file and
 * offset where blocks are wanted. Checks and destinations mean nothing. */
void fffs_prefetch(const fffs_request *requests, size_t count);

/* Says that a batch of so many requests and bytes follows at once: helper threads that sleep wake up meanwhile. Only
 * a hint; nothing has to follow. */
void fffs_engine_expect(size_t count, uint64_t bytes);

/* Picks the backend for this process: "uring", "aio" or "pread". 0; -EINVAL for another name; -errno when the kernel
 * or a sandbox refuses it, and then the backend stays as it was. The initial one is "pread". */
int fffs_engine_select(const char *name);

/* The selected backend's name: a constant. */
const char *fffs_engine_name(void);

/* How many threads may take part in a batch of hot data, the caller included; at least 1. */
int fffs_engine_set_threads(int threads);
int fffs_engine_threads(void);

/* What the engine holds right now, for tests that look for leaks: I/O contexts (rings, AIO contexts) idle in
 * the freelist, and helper threads alive. */
void fffs_engine_usage(int32_t *contexts, int32_t *threads);

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
    FFFS_FAULT_CLOCK = 12,         /* a look at a clock: it is result seconds ahead */
    FFFS_FAULT_NOWAIT = 13,        /* preadv2 with RWF_NOWAIT, which is a PREAD before */
    FFFS_FAULT_FILE_SYSTEM = 14    /* what fffs_file_system answers */
};

/* A result of fffs_fault_set that stalls: the operation waits until the faults are ended, and then goes on. */
enum { FFFS_FAULT_HOLD = -1000000 };

/* Makes the nth operation (1 is the next one) of a kind give result instead of its own, and count - 1 more after it.
 * Each kind has a fault of its own; kind FFFS_FAULT_NONE ends all. A non-negative result of a read cuts it to that
 * many bytes (really read). For tests; costs one predictable branch per operation when unused. */
void fffs_fault_set(int kind, int64_t nth, int64_t count, int32_t result);

/* How many operations of a kind have been seen since fffs_fault_set of it, until the faults were ended. */
int64_t fffs_fault_seen(int kind);

/* How many operations FFFS_FAULT_HOLD makes wait just now. */
int32_t fffs_fault_held(void);

/* ---------------------------------------------------------------- the tree of names (tree*.c) */

/* An immutable namespace as flat arrays, also the layout of a packed folder's trailer (FORMATS.md). Every array is
 * borrowed and stays the caller's.
 *
 * Entries are names in directories; a directory's entries are contiguous and sorted by bytes. Nodes are what names
 * lead to; node 0 is the root directory; a directory's node number is greater than its parent's. */
typedef struct {
    const int64_t *mtime;         /* [nodes] nanoseconds since 1970 */
    const uint32_t *nlink;        /* [nodes] as stat(2) shows it */
    const uint32_t *ref;          /* [nodes] file: record; directory: first entry; symlink: its target's offset */
    const uint32_t *count;        /* [nodes] directory: how many entries; symlink: its target's length; file: 0 */
    const uint32_t *parent;       /* [nodes] directory: the one above (the root: itself); others: 0 */
    const uint16_t *mode;         /* [nodes] as stat(2) shows it, type included */
    const uint32_t *name_offsets; /* [entries + 1] into names */
    const uint32_t *entry_nodes;  /* [entries] */
    const uint8_t *names;         /* [names_size] without separators */
    const uint8_t *targets;       /* [targets_size] symlink targets */
    uint64_t nodes;
    uint64_t entries;
    uint64_t names_size;
    uint64_t targets_size;
} fffs_tree;

/* The limits of a tree, in bytes: those of Linux for a name, for a path (here from the root on; so no directory is
 * more than 2048 deep) and for what a symbolic link says. */
enum { FFFS_NAME_MAX = 255, FFFS_PATH_MAX = 4095, FFFS_TARGET_MAX = 4095 };

/* Checks everything that fffs_tree_lookup, and anyone who walks the arrays, relies on. files may name the records
 * below records. 0; -ENOMEM; or -EINVAL, and then *why (never freed) says what is wrong and *where at which node or
 * entry. */
int fffs_tree_validate(const fffs_tree *tree, uint64_t records, const char **why, uint64_t *where);

/* The node of name in directory node, by binary search. 0 and *found; -ENOENT; -ENOTDIR. The tree must be valid. */
int fffs_tree_lookup(const fffs_tree *tree, uint32_t node, const uint8_t *name, size_t length, uint32_t *found);

/* How many symbolic links are followed for a path, as in Linux, and how many names are looked up for it in all: twice
 * as many as the longest path has. Links may share long targets, and then each costs all of that. */
enum { FFFS_LINKS_MAX = 40, FFFS_STEPS_MAX = FFFS_PATH_MAX };

/* The node at a path from the root, with symbolic links followed as long as they stay inside the tree: relative ones,
 * whose ".." do not leave it. A ".." in the path itself is no name. 0 and *found; -ENOENT; -ELOOP. The tree must be
 * valid. */
int fffs_tree_follow(const fffs_tree *tree, const uint8_t *path, size_t length, uint32_t *found);

/* Orders entries that come in any order into the arrays of a tree.
 *
 * In: for each entry the node of its directory, its own node and its name; for each node whether it is a directory.
 * Node 0 is the root. Out: rank[nodes], the node's number in the tree; entry_nodes, name_offsets and names in tree
 * order. 0; -ENOMEM; -EINVAL when an entry's numbers are out of range or something hangs below no directory; -ELOOP
 * when a directory has two names. Does not look for duplicate names: fffs_tree_validate does. */
int fffs_tree_order(uint64_t entries, uint64_t nodes, const uint32_t *entry_parent, const uint32_t *entry_node,
                    const uint32_t *in_name_offsets, const uint8_t *in_names, const uint8_t *is_directory,
                    uint32_t *rank, uint32_t *entry_nodes, uint32_t *name_offsets, uint8_t *names);

/* ---------------------------------------------------------------- packed folders of ffrecord's (packed_pickle.c) */

/* What a packed folder's pickle holds. Decode with the pointers NULL to learn the sizes, then with room for them. */
typedef struct {
    uint32_t *entry_parent; /* [entries] number of the dictionary this name is in; 0 is the root */
    uint32_t *entry_child;  /* [entries] number of the dictionary it leads to, or 0 for a file */
    int64_t *entry_record;  /* [entries] the file's record, or -1 */
    uint32_t *name_offsets; /* [entries + 1] */
    uint8_t *names;         /* [names_size] as the file system has them: lone surrogates are bytes again */
    uint64_t entries;       /* out */
    uint64_t names_size;    /* out */
    uint64_t directories;   /* out: dictionaries, the root included */
    uint64_t consumed;      /* out: length of the pickle, STOP included */
} fffs_packed_pickle;

/* Decodes the pickle of nested OrderedDicts of names to record numbers, and nothing else: no object is built, no
 * global but collections.OrderedDict is accepted, memory is bounded by a multiple of size. 0; -ENOMEM; or -EINVAL,
 * and then *why (never freed) and *where (offset in data) say what was refused. */
int fffs_packed_pickle_decode(const uint8_t *data, size_t size, fffs_packed_pickle *out, const char **why,
                              uint64_t *where);

/* ---------------------------------------------------------------- changing files (watch.c) */

/* The type of the file system that fd is on, as statfs(2) numbers it (<linux/magic.h>); or -errno. */
int64_t fffs_file_system(int fd);

/* What a file was when it was opened, before anything was read of it. */
typedef struct {
    int64_t size;
    int64_t mtime; /* seconds, and nanoseconds beyond them */
    int64_t mtime_nanoseconds;
    int64_t least; /* somebody may append, or cut what he did not finish, but keeps so many bytes; -1: nobody may */
} fffs_stamp;

/* Whether a file without checksums, open as fd, may be believed to have the bytes that it had: its size and
 * modification time are the same, or what an appender keeps is there. Not ctime, which a new name or mode changes as
 * well. 0; -ESTALE: it changed; or -errno. */
int fffs_unchanged(int fd, const fffs_stamp *stamp);

/* ---------------------------------------------------------------- verified range reads (store.c) */

/* One open file of a store with its index. The arrays and the descriptor stay the caller's and must outlive the
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
    uint32_t keeps_times; /* 1: fstat shows each change of its content, at once and whoever makes it; 0: it may not */
} fffs_file;

typedef struct fffs_store fffs_store;

/* A store over files, whose records are numbered through. *store is the caller's, to be freed when no call on it is
 * running; so are the descriptors, to be closed. 0; -ENOMEM; or -errno, and then *failed is the position of the file
 * that cannot be stat'ed. */
int fffs_store_new(const fffs_file *files, size_t count, fffs_store **store, size_t *failed);
void fffs_store_free(fffs_store *store);

/* How fffs_store_read may answer. */
enum {
    FFFS_READ_NOWAIT = 1,    /* -EAGAIN rather than wait for a disk or check a whole large record */
    FFFS_READ_UNVERIFIED = 2 /* no checks: the bytes as they are in the file */
};

/* Reads up to length bytes of a record from start on into dest, and gives out only what was verified: the first touch
 * of a record reads and checks all of it, or, where there are block checksums, of the blocks touched. A source file
 * that changes is noticed, and its records are checked again; until it rests, at each read. Of a record larger than a
 * block all is read once only: from then on the store has checksums of its blocks (8 bytes a block).
 * The number of bytes read (0 at or after the record's end); -EAGAIN; -EBADMSG: bad checksum; -ENODATA: the file ends
 * inside the record; -ERANGE: no such record; -ESTALE: the file does not stop changing, or has no checksums and was
 * changed since it was opened; or -errno. */
int64_t fffs_store_read(fffs_store *store, uint64_t record, uint64_t start, uint64_t length, uint8_t *dest,
                        int flags);

/* How many records there are in all files. */
uint64_t fffs_store_records(const fffs_store *store);

/* A record's length as the index claims it, or -ERANGE. */
int64_t fffs_store_length(const fffs_store *store, uint64_t record);

/* 1 when all of the record has been verified and its file was not seen to change since, else 0. */
int fffs_store_verified(fffs_store *store, uint64_t record);

/* How many records fffs_store_verified says yes of. Looks at every one. */
uint64_t fffs_store_count_verified(fffs_store *store);

/* ---------------------------------------------------------------- files made of frames (frames.c) */

/* TFRecord: u64 length, its masked CRC-32C, data, the data's masked CRC-32C. OFRecord: i64 length, data. */
enum { FFFS_FRAMES_TFRECORD = 1, FFFS_FRAMES_OFRECORD = 2 };

/* What is wrong with a frame. */
enum {
    FFFS_FRAME_GOOD = 0,
    FFFS_FRAME_CUT_HEAD = 1,        /* the file ends inside its head */
    FFFS_FRAME_CUT = 2,             /* it reaches past the end of the file */
    FFFS_FRAME_LENGTH_CHECKSUM = 3, /* the checksum of its length is wrong */
    FFFS_FRAME_LENGTH_NEGATIVE = 4,
    FFFS_FRAME_EMPTIES = 5 /* more than FFFS_EMPTY_FRAMES empty ones in a row: zeros, but no frames */
};

/* How many empty frames in a row are believed where no checksum speaks for them. */
enum { FFFS_EMPTY_FRAMES = 65536 };

/* How far a file has been scanned. */
typedef struct {
    int64_t position; /* in, out: where the next frame begins, or the one that is wrong */
    int64_t size;     /* of the file */
    uint64_t empty;   /* in, out: empty frames just before; 0 at first */
    uint64_t length;  /* out: what the last frame looked at says is its data's length */
    int32_t fd;
    int32_t kind;  /* FFFS_FRAMES_* */
    int32_t check; /* 0: the checksums of TFRecord's lengths are not compared */
    int32_t fault; /* out: FFFS_FRAME_*, what is wrong with the frame at position */
} fffs_frames;

/* Finds the next frames, at most room: *count of them, and for each where its data ends, and its data's CRC-32C,
 * unmasked (TFRecord only; else checksums may be NULL). Data begins at position + 12 or 8, and then as far behind the
 * data before as head and tail are long. 0, with frames->fault set where the scan cannot go on; -ENODATA when the
 * file has become shorter than size; -ENOMEM; or -errno. */
int fffs_frames_scan(fffs_frames *frames, int64_t *ends, uint32_t *checksums, size_t room, size_t *count);

/* ---------------------------------------------------------------- messages of names and lists (features.c) */

/* tf.train.Example (or the context of a SequenceExample), a SequenceExample's feature lists, OneFlow's OFRecord. */
enum { FFFS_SCHEMA_EXAMPLE = 1, FFFS_SCHEMA_FEATURE_LISTS = 2, FFFS_SCHEMA_OFRECORD = 3 };

/* An entry of the map. Its name is where data has it (not checked to be UTF-8); the same name may come again. */
typedef struct {
    uint64_t name_begin, name_end;
    uint64_t first, count; /* its features: one, unless it is a feature list */
} fffs_feature_entry;

/* A list. Of bytes: its items from first on. Of numbers: first is where in the values they begin, in bytes. */
typedef struct {
    uint64_t kind; /* the field's number in Feature, or 0 */
    uint64_t first, count;
} fffs_feature;

/* How many of everything a message has. */
typedef struct {
    uint64_t entries;
    uint64_t features;
    uint64_t items;       /* of lists of bytes */
    uint64_t values_size; /* of lists of numbers, in bytes */
    uint64_t sequence;    /* 1 when the message has feature lists: it is no Example */
} fffs_features;

/* Decodes a message. Call it first with tables NULL to learn the sizes, bounded by a multiple of the message's; then
 * with those sizes in *out, and tables that have room for, one after another: the entries; the features; uint64[2]
 * for each item, where it begins and ends in data; the values. Numbers are of the kind's type, each list's beginning
 * at a multiple of 8. 0; or -EINVAL, and then *why (never freed) and *where (offset in data) say what was refused. */
int fffs_features_decode(const uint8_t *data, size_t size, int schema, uint64_t *tables, fffs_features *out,
                         const char **why, uint64_t *where);

/* Encodes count numbers as protobuf's varints into data, which has room for ten bytes each. How many bytes it is. */
size_t fffs_varints_encode(const int64_t *values, size_t count, uint8_t *data);

/* ---------------------------------------------------------------- copying with checksums (copy.c) */

/* Copies length bytes from in_fd at in_offset to out_fd at out_offset through a bounded buffer, and gives their
 * checksum of a kind (FFFS_CHECK_*); with block_crcs also those of its blocks ([ceil(length / FFFS_BLOCK)]).
 * *failed_fd is the descriptor whose call failed. 0; -ENODATA when in_fd ends too early; or -errno. */
int fffs_copy(int in_fd, int64_t in_offset, int out_fd, int64_t out_offset, int64_t length, uint32_t check,
              uint32_t *crc, uint32_t *block_crcs, int *failed_fd);

/* Writes everything of the file system that fd is on to disk. 0 or -errno. */
int fffs_syncfs(int fd);

/* Has the kernel begin to write a file's changes to disk, without waiting for them. 0 or -errno. */
int fffs_start_writing(int fd);

/* Waits until the file's dirty pages are on their way to the disk and no longer dirty: a later write to one of them
 * through a mapping sets the file's times anew. 0 or -errno. */
int fffs_clean_pages(int fd);

/* ---------------------------------------------------------------- the kernel fast path (fastpath*.c) */

/* Threads that stand between the kernel and a FUSE library, and answer the few hot requests themselves. */
typedef struct fffs_fastpath fffs_fastpath;

/* What a mount shows, beside its tree. */
typedef struct {
    int32_t fuse_fd;          /* the connection to the kernel */
    int32_t library_fd;       /* our end of a SOCK_SEQPACKET pair, at whose other end the FUSE library serves */
    int32_t threads;          /* how many answer from memory; at least 1 */
    int32_t cold_threads;     /* how many may wait for disks at a time; at least 1 */
    const uint8_t *forwarded; /* [nodes] not 0: a file that only the library can decode; or NULL. Lives as the tree */
    uint32_t uid, gid;        /* the owner of everything */
    uint32_t mode_mask;       /* permission bits to leave out */
    uint32_t timeout;         /* seconds for which the kernel may remember names and attributes */
    uint32_t max_readahead;   /* bytes */
    uint32_t max_read;        /* bytes that the kernel may ask for at a time: from 4096 to 1 MiB */
    int32_t verify;           /* 0: FFFS_READ_UNVERIFIED */
} fffs_fastpath_config;

/* How many reads of one file may wait for its disk at a time: one that does not answer leaves threads for others. */
enum { FFFS_FAST_LANE = 32 };

/* The largest READ that the kernel is told it may send: 256 pages, what it takes unless an administrator raised
 * fs.fuse.max_pages_limit. */
enum { FFFS_READ_MAX = 1048576 };

/* Reads that the kernel lets wait for an answer at a time, for all files together, and how many of them there may be
 * before it reads no longer ahead. Its own 12 would let 12 reads from a disk that does not answer keep all others from
 * even being asked for. */
enum { FFFS_MAX_BACKGROUND = 1024, FFFS_CONGESTION = 768 };

/* Requests by kind, as fffs_fastpath_stats counts them. */
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

/* Latencies are counted in powers of two: bucket b has those from 2^b nanoseconds to twice that. */
enum { FFFS_FAST_BUCKETS = 40 };

typedef struct {
    uint64_t requests[FFFS_FAST_KINDS]; /* by FFFS_FAST_* */
    uint64_t read_bytes;
    uint64_t read_errors;
    uint64_t untold;     /* of these, whose record could not be queued for fffs_fastpath_next_bad */
    uint64_t cold_reads; /* that had to wait for the disk, or for a whole large record */
    uint64_t read_latency[FFFS_FAST_BUCKETS]; /* reads by latency */
    uint64_t waiting;                         /* cold reads that nobody has begun yet */
    int32_t threads, cold_threads;            /* that were started, the cold ones when first needed */
} fffs_fastpath_stats_t;

/* Sets in a library's answer to FUSE_INIT, length bytes of it, how many requests may wait: FFFS_MAX_BACKGROUND and
 * FFFS_CONGESTION, for which the library has no option. For mounts without these threads, which do it themselves. */
void fffs_init_set_limits(uint8_t *answer, size_t length);

/* Starts the threads, fewer of them where the system gives no more. tree and store stay the caller's and must outlive
 * the fast path; so must both descriptors, which it never closes. *fastpath is the caller's until fffs_fastpath_stop.
 * 0 or -errno, and then no message has been read. Not to be used after fork. */
int fffs_fastpath_start(const fffs_fastpath_config *config, const fffs_tree *tree, fffs_store *store,
                        fffs_fastpath **fastpath);

/* Ends the threads and frees everything. Waits at most seconds for threads that wait for a disk: 0, or -EBUSY when
 * some still do, and then nothing is freed (the process must end). */
int fffs_fastpath_stop(fffs_fastpath *fastpath, double seconds);

/* A descriptor (the fast path's) that is readable when one of the following three may say something new. */
int fffs_fastpath_event_fd(const fffs_fastpath *fastpath);

/* The next record that could not be given out, once per record: 1, with its number and -errno; or 0. */
int fffs_fastpath_next_bad(fffs_fastpath *fastpath, uint64_t *record, int32_t *status);

/* 1 when the kernel has the answer to its first message, without which it lets nobody ask anything. */
int fffs_fastpath_connected(const fffs_fastpath *fastpath);

/* 1 when the kernel has ended the connection: nothing more will come. */
int fffs_fastpath_ended(const fffs_fastpath *fastpath);

/* Counters since the start, summed over the threads. */
void fffs_fastpath_stats(fffs_fastpath *fastpath, fffs_fastpath_stats_t *stats);

/* ---------------------------------------------------------------- signals (signals.c) */

/* From now on each of these signals (count of them) writes its number as one byte to fd, a non-blocking descriptor
 * that must stay open as long as the process lives, and does nothing else. One descriptor for all; a later call
 * changes it. 0 or -errno. */
int fffs_signals_to(int fd, const int32_t *numbers, size_t count);
