// The text of an image, with the JDK alone (11 or newer): java Read.java URL IMAGE
import java.io.PrintStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;

class Read {
    public static void main(String[] args) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(args[0] + "/v1/ocr?format=text"))
            .header("Content-Type", "application/octet-stream")
            .header("X-Request-Timeout", "60")
            .timeout(Duration.ofSeconds(61))
            .POST(HttpRequest.BodyPublishers.ofFile(Path.of(args[1])))
            .build();
        // gunicorn speaks HTTP/1.1; asking for more would cost every first request a detour.
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        HttpResponse<String> response = send(client, request);
        boolean good = response.statusCode() == 200;
        PrintStream out = new PrintStream(good ? System.out : System.err, true, StandardCharsets.UTF_8);
        out.print(response.body());
        System.exit(good ? 0 : 1);
    }

    static HttpResponse<String> send(HttpClient client, HttpRequest request) throws Exception {
        HttpResponse<String> response = null;
        for (int tries = 1; tries <= 5; tries++) {
            response = client.send(request, HttpResponse.BodyHandlers.ofString(StandardCharsets.UTF_8));
            if (response.statusCode() != 429 && response.statusCode() != 503) {
                break;
            }
            Thread.sleep(1000 * response.headers().firstValueAsLong("Retry-After").orElse(1));
        }
        return response;
    }
}
