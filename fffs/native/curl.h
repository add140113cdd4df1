/* libcurl, loaded when it is first needed (curl.c): who reads only local files needs neither the library nor its headers. The
 * numbers are libcurl's ABI, which has not changed an assigned number since its version 7.16; see curl/curl.h and curl/multi.h. */
#ifndef FFFS_CURL_H
#define FFFS_CURL_H

#include "fffs.h"

#include <sys/socket.h>

/* Options of a transfer (CURLOPT_*). */
enum {
    CURL_WRITE_DATA = 10001,
    CURL_URL = 10002,
    CURL_RANGE = 10007,
    CURL_ERROR_BUFFER = 10010,
    CURL_USER_AGENT = 10018,
    CURL_HEADERS = 10023,
    CURL_HEADER_DATA = 10029,
    CURL_FOLLOW = 52,
    CURL_CA_FILE = 10065,
    CURL_CA_FOLDER = 10097,
    CURL_PROXY_CA_FILE = 10246,
    CURL_PROXY_CA_FOLDER = 10247,
    CURL_MAX_REDIRECTS = 68,
    CURL_HTTP_VERSION = 84,
    CURL_BUFFER_SIZE = 98,
    CURL_NO_SIGNAL = 99,
    CURL_PRIVATE = 10103,
    CURL_CONNECT_TIMEOUT = 156,
    CURL_OPEN_SOCKET_DATA = 10164,
    CURL_NO_PROXY = 10177,
    CURL_PROTOCOLS = 181,
    CURL_REDIRECT_PROTOCOLS = 182,
    CURL_CLOSE_SOCKET_DATA = 10209,
    CURL_KEEP_ALIVE = 213,
    CURL_PATH_AS_IS = 234,
    CURL_IDLE_MOST = 288, /* CURLOPT_MAXAGE_CONN */
    CURL_QUICK_EXIT = 322,
    CURL_WRITE_FUNCTION = 20011,
    CURL_HEADER_FUNCTION = 20079,
    CURL_TLS_FUNCTION = 20108,
    CURL_OPEN_SOCKET_FUNCTION = 20163,
    CURL_CLOSE_SOCKET_FUNCTION = 20208
};

/* Values of options, facts about a finished transfer (CURLINFO_*), options of a group (CURLMOPT_*), messages. */
enum { CURL_HTTP_1_1 = 2, CURL_HTTP = 1, CURL_HTTPS = 2, CURL_ERROR_SIZE = 256 };
enum {
    CURL_GET_URL = 0x100001,
    CURL_GET_STATUS = 0x200002,
    CURL_GET_PROXY_STATUS = 0x200016,
    CURL_GET_BEFORE = 0x300006,
    CURL_GET_FIRST_BYTE = 0x300011
};
enum { CURL_GET_PRIVATE = 0x100015 };
enum { CURL_GROUP_PIPELINING = 3, CURL_GROUP_KEPT = 6 };
enum { CURL_MESSAGE_DONE = 1 };

/* Results of a transfer (CURLcode). */
enum {
    CURL_OK = 0,
    CURL_BAD_PROTOCOL = 1,
    CURL_BAD_URL = 3,
    CURL_NO_HOST = 6,
    CURL_NO_CONNECTION = 7,
    CURL_SHORT = 18,
    CURL_STOPPED = 23,
    CURL_NO_MEMORY = 27,
    CURL_TIMEOUT = 28,
    CURL_REDIRECTS = 47,
    CURL_BAD_CERTIFICATE = 60,
    CURL_BAD_CA_FILE = 77
};

/* struct CURLMsg. */
struct fffs_curl_message {
    int kind;
    void *transfer;
    union {
        void *unused;
        int result;
    } data;
};

/* struct curl_sockaddr. The address has room for every family. */
struct fffs_curl_address {
    int family, type, protocol;
    unsigned length;
    struct sockaddr address;
};

/* The functions, as in libcurl's documentation. */
struct fffs_curl {
    void *(*easy_init)(void);
    void (*easy_cleanup)(void *transfer);
    int (*easy_setopt)(void *transfer, int option, ...);
    int (*easy_getinfo)(void *transfer, int fact, ...);
    const char *(*easy_strerror)(int result);
    void *(*multi_init)(void);
    int (*multi_cleanup)(void *group);
    int (*multi_setopt)(void *group, int option, ...);
    int (*multi_add)(void *group, void *transfer);
    int (*multi_remove)(void *group, void *transfer);
    int (*multi_perform)(void *group, int *running);
    int (*multi_poll)(void *group, void *extra, unsigned extras, int milliseconds, int *events);
    struct fffs_curl_message *(*multi_read)(void *group, int *left);
    void *(*list_append)(void *list, const char *line);
    void (*list_free)(void *list);
};

/* Returns the functions, constant from the first success on; or NULL: the library is missing or older than 7.66. Thread-safe. */
const struct fffs_curl *fffs_curl_load(void);

/* Adds OpenSSL's usual authorities to a connection, of which CURL_TLS_FUNCTION gets the context. Returns false if there is not enough
 * memory, or if fffs_http_adds_usual is false. */
bool fffs_curl_add_usual(void *context);

/* Frees what OpenSSL has for this thread, which may use OpenSSL again afterwards. Call it between fffs_http_enter and
 * fffs_http_leave. */
void fffs_curl_end_thread(void);

#endif
