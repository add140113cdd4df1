/* One request for the rest of a range.
 *
 * The bytes of an answer go straight to their destinations and are checksummed as they come. The version of the object is part
 * of each request, so that the rest of a range that ended early belongs to the same version. */
#include "transfer.h"
#include "clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Answers that are not what was asked for, before that is final; bytes of the text of an error that are read. */
enum { OFFENCES_MAX = 3, TEXT_MAX = 64 * 1024 };

/* Bytes of the header lines of a transfer, with those of redirections and proxies. Stores send a few thousand. */
enum { HEADERS_MAX = 256 * 1024 };

/* For how long a transfer may stall: half of the deadline, so that there is time for another one, within these limits. */
#define PATIENCE_LEAST FFFS_SECOND
#define PATIENCE_MOST (30 * FFFS_SECOND)

/* Milliseconds in which a connection must be made: the deadline, or less. */
enum { CONNECT_MOST = 10000 };

#define NO_RANGES "the server does not support reading ranges, or none that end behind the object"

/* The hosts of no_proxy that are this machine. */
#define THIS_MACHINE "localhost,127.0.0.1,127.0.0.0/8,::1"

/* ---------------------------------------------------------------- settings */

static _Atomic int64_t deadline = 60 * FFFS_SECOND;
static _Atomic int connections_max = 64;
static _Atomic bool plain_allowed;
static const char *_Atomic ca_file, *_Atomic ca_folder;
static _Atomic bool ca_usual;

/* All paths that were ever set, which are few. They are never freed: another thread may use the old one. */
struct path {
    struct path *next;
    char text[];
};
static struct path *_Atomic paths;

/* Returns 0 or -ENOMEM. */
static int keep(const char *_Atomic *place, const char *text)
{
    struct path *known = atomic_load(&paths);

    if (!text) {
        atomic_store(place, NULL);
        return 0;
    }
    while (known && strcmp(known->text, text) != 0)
        known = known->next;
    if (!known) {
        size_t size = strlen(text) + 1;

        known = malloc(sizeof *known + size);
        if (!known)
            return -ENOMEM;
        memcpy(known->text, text, size);
        known->next = atomic_load(&paths);
        while (!atomic_compare_exchange_weak(&paths, &known->next, known))
            ;
    }
    atomic_store(place, known->text);
    return 0;
}

int fffs_http_configure(double seconds, int32_t connections, int32_t allow_plain, const char *file,
                        const char *folder, int32_t usual_too)
{
    if (keep(&ca_file, file) || keep(&ca_folder, folder))
        return -ENOMEM;
    atomic_store(&ca_usual, usual_too != 0);
    atomic_store(&deadline, (int64_t)(seconds * 1e9));
    atomic_store(&connections_max, connections < 1                       ? 1
                                   : connections > FFFS_HTTP_CONNECTIONS ? FFFS_HTTP_CONNECTIONS
                                                                         : connections);
    atomic_store(&plain_allowed, allow_plain != 0);
    fffs_http_renew(); /* transfers keep the options that they had, and connections were made with those */
    return 0;
}

int64_t fffs_http_deadline(void)
{
    return atomic_load(&deadline);
}

int fffs_http_connections(void)
{
    return atomic_load(&connections_max);
}

int64_t fffs_http_patience(void)
{
    int64_t half = atomic_load(&deadline) / 2;

    return half < PATIENCE_LEAST ? PATIENCE_LEAST : half > PATIENCE_MOST ? PATIENCE_MOST : half;
}

/* ---------------------------------------------------------------- answers */

/* Whether the answer has the bytes of the range. Called when its first byte comes. */
static int judge(struct fffs_transfer *self)
{
    struct fffs_range *range = self->range;
    const struct fffs_curl *curl = self->client->curl;

    self->status = 0;
    curl->easy_getinfo(self->handle, CURL_GET_STATUS, &self->status);
    if (self->status != 200 && self->status != 206)
        return -EIO;
    int status = fffs_answer_judge(&self->answer, self->status, &self->use.version, self->use.stored, range->place,
                                   range->end, &self->why);
    if (status)
        return status;
    if (self->use.follow) {
        const char *url = NULL;

        curl->easy_getinfo(self->handle, CURL_GET_URL, &url);
        fffs_object_learn(range->object, &self->answer.version, &self->use, url);
    }
    if (self->use.version.size < 0 && range->end > self->answer.end)
        range->end = self->answer.end;
    return 1;
}

static size_t on_body(char *data, size_t unit, size_t count, void *user)
{
    struct fffs_transfer *self = user;
    struct fffs_range *range = self->range;
    size_t length = unit * count;

    if (!self->judged)
        self->judged = judge(self);
    if (self->judged == 1) {
        if ((int64_t)length > range->end - range->place) {
            self->judged = -EPROTO;
            self->why = "the server sent more bytes than it announced";
            return 0;
        }
        fffs_range_take(range, (const uint8_t *)data, length);
        fffs_speed_note(&self->speed, fffs_now(), (int64_t)length);
        return length;
    }
    if (self->judged != -EIO)
        return 0; /* ends the transfer */
    /* The beginning of an error's text says why, in XML. */
    size_t room = sizeof self->text - 1;
    if ((uint64_t)self->dropped < room) {
        size_t used = (size_t)self->dropped, some = length < room - used ? length : room - used;

        memcpy(self->text + used, data, some);
        self->text[used + some] = 0;
    }
    self->dropped += (int64_t)length;
    return self->dropped > TEXT_MAX ? 0 : length;
}

static size_t on_header(char *line, size_t unit, size_t count, void *user)
{
    struct fffs_transfer *self = user;

    self->header_bytes += (int64_t)(unit * count);
    if (self->header_bytes > HEADERS_MAX) {
        self->judged = -EPROTO;
        self->why = "the server sends too many header lines";
        return 0;
    }
    fffs_answer_line(&self->answer, line, unit * count);
    return unit * count;
}

/* Returns the header lines of a request, or NULL: no memory. The caller frees them. */
static void *make_headers(const struct fffs_curl *curl, const struct fffs_object_use *use)
{
    const struct fffs_version *version = &use->version;
    char line[FFFS_ETAG_MAX + 32] = "";
    void *headers = curl->list_append(NULL, use->compressed ? "Accept-Encoding: gzip" : "Accept-Encoding: identity");
    void *more = headers;

    /* A weak ETag, W/"…", matches nothing in If-Match; it is compared when the answer comes. So is the version of an object whose
     * address redirects: it is not that of the address itself. */
    if (use->follow)
        ;
    else if (*version->etag == '"')
        snprintf(line, sizeof line, "If-Match: %s", version->etag);
    else if (!*version->etag && *version->modified)
        snprintf(line, sizeof line, "If-Unmodified-Since: %s", version->modified);
    if (headers && *line)
        more = curl->list_append(headers, line);
    if (!more)
        curl->list_free(headers);
    return more ? headers : NULL;
}

/* ---------------------------------------------------------------- sockets */

static bool is_loopback(const struct sockaddr *address)
{
    const struct sockaddr_in *four = (const void *)address;
    const struct sockaddr_in6 *six = (const void *)address;

    if (address->sa_family == AF_INET)
        return ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

/* Without permission for plain http, it goes to this machine only, also where redirections and names of hosts lead. libcurl knows
 * the address that is asked at this moment. */
static int open_socket(void *data, int purpose, struct fffs_curl_address *address)
{
    struct fffs_transfer *self = data;
    const char *url = NULL;

    (void)purpose;
    self->client->curl->easy_getinfo(self->handle, CURL_GET_URL, &url);
    if (!atomic_load(&plain_allowed) && (!url || strncasecmp(url, "https:", 6)) && !is_loopback(&address->address)) {
        self->judged = -EPROTO;
        self->why = "it leads to another machine without encryption; AWS_ALLOW_HTTP=true allows that";
        return -1;
    }
    return fffs_http_open_socket(self->client, address);
}

/* ---------------------------------------------------------------- beginning and ending one */

static int add_usual(void *handle, void *context, void *data)
{
    (void)handle, (void)data;
    return fffs_curl_add_usual(context) ? CURL_OK : CURL_NO_MEMORY;
}

static void set_authorities(struct fffs_transfer *self)
{
    const struct fffs_curl *curl = self->client->curl;
    const char *file = atomic_load(&ca_file), *folder = atomic_load(&ca_folder);

    if (file) {
        curl->easy_setopt(self->handle, CURL_CA_FILE, file);
        curl->easy_setopt(self->handle, CURL_PROXY_CA_FILE, file);
    }
    if (folder) {
        curl->easy_setopt(self->handle, CURL_CA_FOLDER, folder);
        curl->easy_setopt(self->handle, CURL_PROXY_CA_FOLDER, folder);
    }
    if (atomic_load(&ca_usual))
        curl->easy_setopt(self->handle, CURL_TLS_FUNCTION, add_usual);
}

/* Without encryption, this machine is asked through no proxy, which has another localhost and would see signed addresses. Without
 * permission for plain http, all its hosts are this machine. As in proxies.py. */
static void set_no_proxy(struct fffs_transfer *self)
{
    const struct fffs_curl *curl = self->client->curl;
    const char *list = getenv("no_proxy");
    char *longer = NULL;

    if (strncmp(self->use.url, "http://", 7)) {
        list = NULL; /* libcurl reads the variable itself */
    } else if (!atomic_load(&plain_allowed)) {
        list = "*";
    } else {
        list = list && *list ? list : getenv("NO_PROXY");
        if (!list || strcmp(list, "*"))
            list = asprintf(&longer, "%s,%s", THIS_MACHINE, list ? list : "") < 0 ? "*" : longer;
    }
    curl->easy_setopt(self->handle, CURL_NO_PROXY, list); /* copies it */
    if (longer)
        free(longer);
}

static void set_options(struct fffs_transfer *self)
{
    const struct fffs_curl *curl = self->client->curl;
    long protocols =
        CURL_HTTPS | (!strncmp(self->use.url, "http://", 7) || atomic_load(&plain_allowed) ? CURL_HTTP : 0);
    long connect = (long)(atomic_load(&deadline) / (FFFS_SECOND / 1000));
    char range[64];

    snprintf(range, sizeof range, "%lld-%lld", (long long)self->range->place, (long long)self->range->end - 1);
    curl->easy_setopt(self->handle, CURL_URL, self->use.url);
    curl->easy_setopt(self->handle, CURL_RANGE, self->range->without_range ? NULL : range);
    curl->easy_setopt(self->handle, CURL_HEADERS, self->headers);
    curl->easy_setopt(self->handle, CURL_PROTOCOLS, protocols);
    set_no_proxy(self);
    /* From https, redirections lead to https only. They are followed once: the address that they lead to is kept while it works. */
    curl->easy_setopt(self->handle, CURL_REDIRECT_PROTOCOLS, protocols);
    curl->easy_setopt(self->handle, CURL_FOLLOW, (long)self->use.follow);
    curl->easy_setopt(self->handle, CURL_IDLE_MOST, fffs_http_idle_most());
    curl->easy_setopt(self->handle, CURL_CONNECT_TIMEOUT, connect < CONNECT_MOST ? connect : (long)CONNECT_MOST);
    curl->easy_setopt(self->handle, CURL_WRITE_FUNCTION, on_body);
    curl->easy_setopt(self->handle, CURL_WRITE_DATA, self);
    curl->easy_setopt(self->handle, CURL_HEADER_FUNCTION, on_header);
    curl->easy_setopt(self->handle, CURL_HEADER_DATA, self);
    curl->easy_setopt(self->handle, CURL_OPEN_SOCKET_FUNCTION, open_socket);
    curl->easy_setopt(self->handle, CURL_OPEN_SOCKET_DATA, self);
    curl->easy_setopt(self->handle, CURL_ERROR_BUFFER, self->error);
    curl->easy_setopt(self->handle, CURL_PRIVATE, self);
    set_authorities(self);
}

void fffs_transfer_end(struct fffs_transfer *self)
{
    struct fffs_http_client *client = self->client;

    if (self->in_group)
        client->curl->multi_remove(client->group, self->handle);
    client->curl->list_free(self->headers);
    fffs_object_leave(&self->use);
    if (self->handle)
        fffs_http_give_transfer(client, self->handle);
    self->headers = self->handle = NULL;
    self->range = NULL;
    self->in_group = false;
}

int fffs_transfer_begin(struct fffs_transfer *self, struct fffs_http_client *client, struct fffs_range *range)
{
    *self =
        (struct fffs_transfer){.client = client, .range = range, .begun = range->place, .speed.begun = fffs_now()};
    int status = fffs_object_enter(range->object, &self->use);
    if (!status) {
        self->handle = fffs_http_take_transfer(client);
        self->headers = make_headers(client->curl, &self->use);
        status = self->handle && self->headers ? 0 : -ENOMEM;
    }
    if (!status) {
        set_options(self);
        status = client->curl->multi_add(client->group, self->handle) ? -ENOMEM : 0;
        self->in_group = !status;
    }
    if (status)
        fffs_transfer_end(self);
    return status;
}

/* ---------------------------------------------------------------- results */

/* What an HTTP status means: -errno, or 0 if another try may succeed. */
static int meaning(long status)
{
    switch (status) {
    case 400: /* of an expired token, among others */
    case 401:
    case 403: return -EACCES;
    case 404:
    case 410: return -ENOENT;
    case 412:
    case 416: return -ESTALE;
    case 408:
    case 425:
    case 429: return 0;
    default: return status >= 500 ? 0 : -EPROTO;
    }
}

/* Whether the server refused the first range of an object without saying how much there is. Empty objects are answered so, and
 * so are all others by servers that know no ranges, or none that end behind the object. */
static bool is_refused_range(const struct fffs_transfer *self)
{
    return self->status == 416 && !self->answer.unsatisfied && self->use.version.size < 0;
}

/* Whether the server answered with an error, and not with bytes. */
static bool is_refusal(const struct fffs_transfer *self)
{
    return self->status && self->status != 200 && self->status != 206;
}

/* The -errno of a failed connection; *final: another try cannot succeed. */
static int connection_failure(int result, bool *final)
{
    *final = false;
    switch (result) {
    case CURL_NO_HOST: return -EHOSTUNREACH;
    case CURL_NO_CONNECTION: return -ECONNREFUSED;
    case CURL_TIMEOUT: return -ETIMEDOUT;
    case CURL_BAD_CERTIFICATE:
    case CURL_BAD_CA_FILE: *final = true; return -EKEYREJECTED;
    case CURL_BAD_PROTOCOL:
    case CURL_BAD_URL:
    case CURL_REDIRECTS: *final = true; return -EPROTO;
    case CURL_NO_MEMORY: *final = true; return -ENOMEM;
    default: return -EIO;
    }
}

/* Whether the address that redirections led to is of no use any more: its signature expired, or its server is gone. */
static bool lost_redirection(const struct fffs_transfer *self, int result)
{
    int status = is_refusal(self) ? meaning(self->status) : 0;
    bool unreachable = !is_refusal(self) && (result == CURL_NO_HOST || result == CURL_NO_CONNECTION);

    return self->use.redirected && (status == -EACCES || status == -ENOENT || unreachable);
}

/* Whether a proxy refused to connect to the server, and what it said. */
static bool was_refused_by_proxy(struct fffs_transfer *self)
{
    long status = 0;

    self->client->curl->easy_getinfo(self->handle, CURL_GET_PROXY_STATUS, &status);
    if (self->status || !status || status / 100 == 2)
        return false;
    if (status == 407 || status == 401) /* as of tinyproxy, if the password is wrong */
        self->why = "the proxy wants another user or password, as in https_proxy=http://USER:PASSWORD@HOST:PORT";
    else
        snprintf(self->text, sizeof self->text, "HTTP status %ld of the proxy; see https_proxy and no_proxy", status);
    return meaning(status) != 0;
}

/* Whether the environment names a proxy that libcurl does not know how to use. It repeats the address, with the password. */
static bool has_unknown_proxy(struct fffs_transfer *self)
{
    if (strncmp(self->error, "Unsupported proxy", strlen("Unsupported proxy")))
        return false;
    self->why = "libcurl does not support the address of the proxy; see https_proxy and no_proxy";
    return true;
}

int fffs_transfer_failure(struct fffs_transfer *self, int result, bool *final)
{
    bool lost = lost_redirection(self, result);

    if (lost)
        fffs_object_forget_redirection(self->range->object, &self->use);
    if (was_refused_by_proxy(self) || has_unknown_proxy(self)) {
        *final = true;
        return -EPROTO;
    }
    if (result == CURL_NO_MEMORY && !self->judged) { /* what older versions of libcurl say of a long line, too */
        self->judged = -EPROTO;
        self->why = "the server sends a header line that is too long, or there is not enough memory";
    }
    if (result == CURL_OK && !self->judged && !is_refusal(self)) /* without a body */
        self->judged = judge(self);
    if (self->judged == -EPROTO || self->judged == -ESTALE) {
        bool whole = self->range->without_range && self->status == 200; /* there are bytes, but no ranges of them */

        if (self->answer.decompresses && self->use.stored && !self->use.compressed) {
            fffs_object_ask_compressed(self->range->object);
            *final = false;
            return self->judged;
        }
        if (whole)
            self->why = NO_RANGES;
        *final = whole || self->judged == -ESTALE || ++self->range->offences >= OFFENCES_MAX;
        return self->judged;
    }
    if (!is_refusal(self))
        return connection_failure(result, final);
    if (is_refused_range(self)) {
        *final = self->range->without_range;
        self->range->without_range = true;
        self->why = NO_RANGES;
        return -EPROTO;
    }
    int status = meaning(self->status);
    *final = status != 0 && !lost && !(status == -EACCES && fffs_object_awaits_url(self->range->object, &self->use));
    return status ? status : -EIO;
}

int64_t fffs_transfer_stalls_since(const struct fffs_transfer *self)
{
    return fffs_speed_stalls_since(&self->speed);
}

void fffs_transfer_note_stall(struct fffs_transfer *self)
{
    int64_t seconds = (fffs_now() - fffs_speed_stalls_since(&self->speed)) / FFFS_SECOND;

    fffs_http_note_silence();
    if (!*self->text) /* of a server that did not end its answer that it refuses */
        snprintf(self->text, sizeof self->text, "hardly a byte came for %lld second%s", (long long)seconds,
                 seconds == 1 ? "" : "s");
}

bool fffs_transfer_succeeded(struct fffs_transfer *self)
{
    self->client->curl->easy_getinfo(self->handle, CURL_GET_STATUS, &self->status);
    return self->judged == 1 && self->range->place == self->range->end;
}

bool fffs_transfer_found_nothing(struct fffs_transfer *self)
{
    if (self->use.version.size >= 0)
        return false;
    /* Some servers know no ranges of nothing. */
    bool whole = self->status == 200 && !self->judged && !self->answer.length && !self->answer.encoded;
    if (!self->begun && whole)
        self->answer.version.size = 0;
    return (whole || self->status == 416) && self->answer.version.size == 0;
}

void fffs_transfer_report(const struct fffs_transfer *self, int result)
{
    const char *text = self->why ? self->why : *self->text ? self->text : self->error;

    fffs_object_failed(self->range->object, is_refusal(self) && !self->why ? self->status : 0,
                       *text    ? text
                       : result ? self->client->curl->easy_strerror(result)
                                : "the server sent fewer bytes than it announced");
}

int64_t fffs_transfer_latency(const struct fffs_transfer *self)
{
    const struct fffs_curl *curl = self->client->curl;
    double before = 0, first = 0;

    curl->easy_getinfo(self->handle, CURL_GET_BEFORE, &before);
    curl->easy_getinfo(self->handle, CURL_GET_FIRST_BYTE, &first);
    return first > before ? (int64_t)((first - before) * 1e9) : 0;
}
