// The lines of an image, with the standard library alone: go run read.go URL IMAGE
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

type answer struct {
	Pages []struct {
		Lines []struct {
			Text       string       `json:"text"`
			Confidence float64      `json:"confidence"`
			Box        [][2]float64 `json:"box"`
		} `json:"lines"`
	} `json:"pages"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

func send(url string, image []byte) (*http.Response, error) {
	client := &http.Client{Timeout: 61 * time.Second}
	for tries := 1; ; tries++ {
		request, err := http.NewRequest("POST", url+"/v1/ocr", bytes.NewReader(image))
		if err != nil {
			return nil, err
		}
		request.Header.Set("Content-Type", "application/octet-stream")
		request.Header.Set("X-Request-Timeout", "60")
		response, err := client.Do(request)
		if err != nil || tries == 5 || (response.StatusCode != 429 && response.StatusCode != 503) {
			return response, err
		}
		response.Body.Close()
		seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
		if err != nil {
			seconds = 1
		}
		time.Sleep(time.Duration(seconds) * time.Second)
	}
}

func main() {
	log.SetFlags(0)
	image, err := os.ReadFile(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	response, err := send(os.Args[1], image)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	var got answer
	if err := json.NewDecoder(response.Body).Decode(&got); err != nil {
		log.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		log.Fatalf("%s: %s", got.Title, got.Detail)
	}
	for _, line := range got.Pages[0].Lines {
		fmt.Printf("%.2f %s\n", line.Confidence, line.Text)
	}
}
