import java.net.URL;

/** Fetches a page as Java has always done. */
public class Fetch {
    public static void main(String[] words) throws Exception {
        new URL(words[0]).openStream().transferTo(System.out);
    }
}
